package plugintest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// keeper is the pod that has a device of every resource to the end.
const keeper = "keeper"

// container is the name of every pod's only container.
const container = "main"

// podOf is one with a container that requests devices.
func podOf(name string, wants map[string]int64) *typesv1.Pod {
	r := map[string]string{}
	for resource, n := range wants {
		r[resource] = strconv.FormatInt(n, 10)
	}
	return &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: name, Namespace: "test", Uid: name},
		Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
			Name: container, Resources: &typesv1.ResourceRequirements{Requests: r, Limits: r},
		}}},
	}
}

// wants returns f(resource) devices of every resource, those with none left
// out.
func (l *life) wants(f func(r *devicev1.Resource) int64) map[string]int64 {
	out := map[string]int64{}
	for _, r := range l.resources {
		if n := f(r); n > 0 && r.GetAllocatable() > 0 {
			out[r.GetName()] = n
		}
	}
	return out
}

// counted returns numbers of devices by resource.
func counted(wants map[string]int64) string {
	return joined(wants, func(n int64) string { return strconv.FormatInt(n, 10) })
}

// listed returns ids of devices by resource.
func listed(held map[string][]string) string {
	return joined(held, func(ids []string) string { return strings.Join(ids, ",") })
}

func joined[T any](m map[string]T, value func(T) string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, name+"="+value(m[name]))
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, " ")
}

func one(*devicev1.Resource) int64 { return 1 }

// admit admits a pod; the error is of the call, or the rejection.
func (l *life) admit(ctx context.Context, name string, wants map[string]int64) error {
	resp, err := l.daemon.client.AdmitPod(ctx, podOf(name, wants))
	switch {
	case err != nil:
		return err
	case resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED:
		return fmt.Errorf("a pod with %s is rejected: %s", counted(wants), resp.GetMessage())
	}
	return nil
}

func (l *life) remove(ctx context.Context, name string) error {
	_, err := l.daemon.client.RemovePod(ctx, name)
	return err
}

// ids returns what a pod holds, by resource.
func (l *life) ids(ctx context.Context, name string) (map[string][]string, error) {
	resp, err := l.daemon.client.Allocation().Get(ctx, &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: name}})
	out := map[string][]string{}
	for _, c := range resp.GetPod().GetContainers() {
		for _, claim := range c.GetClaims() {
			for _, d := range claim.GetDevice().GetDevices() {
				out[claim.GetResource()] = append(out[claim.GetResource()], d.GetId())
			}
		}
	}
	return out, err
}

func (l *life) admitOne(ctx context.Context) (string, error) {
	if err := l.admit(ctx, keeper, l.wants(one)); err != nil {
		return "", err
	}
	held, err := l.ids(ctx, keeper)
	if err != nil {
		return "", err
	}
	got, err := l.daemon.client.Allocate(ctx, keeper, container)
	if err != nil {
		return "", err
	}
	edits := got.GetEdits()
	return fmt.Sprintf("a pod got %s: %d variables, %d mounts, %d device nodes, %d CDI names", listed(held),
		len(edits.GetEnvs()), len(edits.GetMounts()), len(edits.GetDevices()), len(edits.GetCdiDevices())), nil
}

// readers holds podresources against the pod.
func (l *life) readers(ctx context.Context) (string, error) {
	want, err := l.ids(ctx, keeper)
	if err != nil {
		return "", err
	}
	resp, err := podresourcesv1.NewPodResourcesListerClient(l.daemon.client.Conn()).List(ctx, &podresourcesv1.ListPodResourcesRequest{})
	if err != nil {
		return "", err
	}
	got := map[string][]string{}
	for _, p := range resp.GetPodResources() {
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() { // an entry for each of its nodes
					if !slices.Contains(got[d.GetResourceName()], id) {
						got[d.GetResourceName()] = append(got[d.GetResourceName()], id)
					}
				}
			}
		}
	}
	if !maps.EqualFunc(got, want, slices.Equal) {
		return "", fmt.Errorf("they see %s, and the pod holds %s", listed(got), listed(want))
	}
	return "they see what the pod holds", nil
}

// free is how many healthy devices the keeper has left.
func free(r *devicev1.Resource) int64 { return r.GetAllocatable() - 1 }

func (l *life) admitAll(ctx context.Context) (string, error) {
	rest := l.wants(free)
	if len(rest) == 0 {
		return "", skipped("there is only one device")
	}
	if err := l.admit(ctx, "all", rest); err != nil {
		return "", err
	}
	return fmt.Sprintf("one container got all others, %s", counted(rest)), l.remove(ctx, "all")
}

func (l *life) admitTooMany(ctx context.Context) (string, error) {
	for name, n := range l.wants(func(r *devicev1.Resource) int64 { return free(r) + 1 }) {
		if err := l.admit(ctx, "more", map[string]int64{name: n}); err == nil {
			return "", errors.Join(fmt.Errorf("%s: %d more devices were allocated than exist", name, 1), l.remove(ctx, "more"))
		}
	}
	return "a request for one more than exist is refused", nil
}

// startContainer starts the keeper's container twice, as a crash does.
func (l *life) startContainer(ctx context.Context) (string, error) {
	for i := range 2 {
		_, err := l.daemon.client.PreStartContainer(ctx, keeper, container, "start-"+strconv.Itoa(i), 0)
		if err != nil {
			return "", fmt.Errorf("start %d: %w", i+1, err)
		}
	}
	if slices.ContainsFunc(l.resources, (*devicev1.Resource).GetPreStartRequired) {
		return "the plugin accepted two starts", nil
	}
	return "it starts twice; PreStartContainer is not requested by the plugin", nil
}

// manyPods admits and removes pods from many sides at once.
func (l *life) manyPods(ctx context.Context) (string, error) {
	wants := l.pool()
	if l.Flood == 0 || len(wants) == 0 {
		return "", skipped("not requested, or there is only one device")
	}
	const sides = 8
	var group sync.WaitGroup
	errs := make([]error, sides)
	admitted := make([]int, sides)
	began := time.Now()
	for side := range sides {
		group.Go(func() {
			for i := range max(1, l.Flood/sides) {
				name := fmt.Sprintf("flood-%d-%d", side, i)
				resp, err := l.daemon.client.AdmitPod(ctx, podOf(name, wants))
				if err == nil && resp.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
					admitted[side]++
					err = l.remove(ctx, name)
				}
				if err != nil {
					errs[side] = err
					return
				}
			}
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return "", err
	}
	total := 0
	for _, n := range admitted {
		total += n
	}
	if total == 0 {
		return "", errors.New("no pod was admitted, though there are free devices")
	}
	return fmt.Sprintf("%d pods came and went in %s", total, time.Since(began).Round(time.Millisecond)), nil
}
