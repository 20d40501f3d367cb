package convert_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// reader reads as Kubernetes 1.36 would.
var reader = convert.Reader{Features: workload.Features{PodLevelResources: true}}

// fromJSON reads a pod as a caller with a Kubernetes pod at hand would send it.
func fromJSON(t *testing.T, text string) *typesv1.Pod {
	t.Helper()
	m := new(typesv1.Pod)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return m
}

const kubernetesPod = `{
  "apiVersion": "v1", "kind": "Pod",
  "metadata": {
    "name": "web", "namespace": "shop", "uid": "0b4c7ee4", "resourceVersion": "17",
    "labels": {"app": "web"}, "annotations": {"kubernetes.io/config.source": "api"}
  },
  "spec": {
    "nodeName": "n1", "hostNetwork": true, "hostPID": true, "priority": 7, "priorityClassName": "high",
    "restartPolicy": "Never", "terminationGracePeriodSeconds": 30,
    "overhead": {"cpu": "250m"},
    "resources": {"limits": {"memory": "3Gi"}},
    "initContainers": [
      {"name": "prepare", "image": "busybox"},
      {"name": "mesh", "restartPolicy": "Always", "resources": {"requests": {"cpu": "0.5"}}}
    ],
    "containers": [{
      "name": "main", "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
      "resources": {
        "requests": {"cpu": "2", "memory": "1.5"},
        "limits": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi", "example.com/gpu": "1"}
      }
    }]
  },
  "status": {"qosClass": "Burstable", "phase": "Pending"}
}`

func TestPodAsKubernetesSpellsIt(t *testing.T) {
	t.Parallel()
	got, err := reader.Pod(fromJSON(t, kubernetesPod))
	if err != nil {
		t.Fatal(err)
	}
	priority := int32(7)
	want := workload.Pod{
		UID: "0b4c7ee4", Namespace: "shop", Name: "web",
		Labels:      map[string]string{"app": "web"},
		Annotations: map[string]string{"kubernetes.io/config.source": "api"},
		Containers: []workload.Container{
			{Name: "prepare", Role: workload.Init},
			{Name: "mesh", Role: workload.Sidecar, Requests: workload.Quantities{workload.CPU: 500}},
			{
				Name: "main", Role: workload.App,
				Requests: workload.Quantities{workload.CPU: 2000, workload.Memory: 2},
				Limits: workload.Quantities{workload.CPU: 2000, workload.Memory: 1 << 30, "hugepages-2Mi": 4 << 20,
					"example.com/gpu": 1},
				Excess:       &workload.Excess{Requests: workload.Quantities{workload.Memory: 500_000_000}},
				ResizePolicy: map[workload.Resource]string{workload.CPU: "NotRequired"},
			},
		},
		Overhead:  workload.Quantities{workload.CPU: 250},
		Resources: &workload.Resources{Limits: workload.Quantities{workload.Memory: 3 << 30}},
		QoS:       workload.Burstable, Priority: &priority, PriorityClassName: "high",
		RestartPolicy: "Never", HostNetwork: true,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n\t%+v\nwant\n\t%+v", got, want)
	}
}

func TestNamespaceIsDefault(t *testing.T) {
	t.Parallel()
	got, err := reader.Pod(valid())
	if err != nil || got.Namespace != "default" || got.Priority != nil || got.Resources != nil {
		t.Errorf("%+v, %v; want the namespace default and nothing else", got, err)
	}
}

// valid is the smallest valid pod.
func valid() *typesv1.Pod {
	return &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: "web", Uid: "u1"},
		Spec:     &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "main"}}},
	}
}

// limits makes a container's resources of "name=limit" pairs.
func limits(pairs ...string) *typesv1.ResourceRequirements {
	r := &typesv1.ResourceRequirements{Limits: map[string]string{}}
	for _, p := range pairs {
		name, text, _ := strings.Cut(p, "=")
		r.Limits[name] = text
	}
	return r
}

func TestViolationsCarryTheirPaths(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 400)
	for name, row := range map[string]struct {
		change func(*typesv1.Pod)
		want   []string // "path: description", of which the beginning is compared
	}{
		"nothing": {func(p *typesv1.Pod) { proto.Reset(p) }, []string{
			"pod.metadata.name: is required", "pod.metadata.uid: is required",
			"pod.spec.containers: is required: a pod has at least one app container",
		}},
		"negative": {func(p *typesv1.Pod) { p.Spec.Containers[0].Resources = limits("cpu=-1") }, []string{
			`pod.spec.containers[0].resources.limits["cpu"]: -1 must not be negative`,
			`pod.spec.containers[0].resources.requests["cpu"]: -1 must not be negative`,
		}},
		"no quantity": {func(p *typesv1.Pod) {
			p.Spec.Containers[0].Resources = limits("cpu=two", "memory=1GB", "example.com/gpu=")
		}, []string{
			`pod.spec.containers[0].resources.limits["cpu"]: "two": expected a Kubernetes quantity such as 2, 500m or 1Gi`,
			`pod.spec.containers[0].resources.limits["example.com/gpu"]: "": expected`,
			`pod.spec.containers[0].resources.limits["memory"]: "1GB": expected`,
		}},
		"unreadable limit of a request": {func(p *typesv1.Pod) {
			p.Spec.Containers[0].Resources = limits("example.com/gpu=many")
			p.Spec.Containers[0].Resources.Requests = map[string]string{"example.com/gpu": "1"}
		}, []string{`pod.spec.containers[0].resources.limits["example.com/gpu"]: "many": expected`}},
		"request above limit": {func(p *typesv1.Pod) {
			p.Spec.Containers[0].Resources = limits("memory=1Gi")
			p.Spec.Containers[0].Resources.Requests = map[string]string{"memory": "2Gi"}
		}, []string{`pod.spec.containers[0].resources.requests["memory"]: 2Gi must not be above the limit, 1Gi`}},
		"too large": {func(p *typesv1.Pod) { p.Spec.Overhead = map[string]string{"memory": "1e19", "cpu": "1e99"} }, []string{
			`pod.spec.overhead["cpu"]: "1e99": does not fit into 64 bits`,
			`pod.spec.overhead["memory"]: "1e19": does not fit`,
		}},
		"long amount": {func(p *typesv1.Pod) { p.Spec.Resources = limits("cpu=" + strings.Repeat("1", 65)) }, []string{
			`pod.spec.resources.limits["cpu"]: 65 characters: expected a quantity of at most 64`,
		}},
		"resource name": {func(p *typesv1.Pod) { p.Spec.Containers[0].Resources = limits("gpu=1", "a/b/c=1") }, []string{
			`pod.spec.containers[0].resources.limits["a/b/c"]: "a/b/c" is not a resource name`,
			`pod.spec.containers[0].resources.limits["gpu"]: "gpu" is not a resource name`,
			`pod.spec.containers[0].resources.requests["a/b/c"]: "a/b/c" is not`,
			`pod.spec.containers[0].resources.requests["gpu"]: "gpu" is not`,
		}},
		"long resource name": {func(p *typesv1.Pod) { p.Spec.Containers[0].Resources = limits(long + "=1") }, []string{
			`pod.spec.containers[0].resources.limits["` + long[:40] + `..."]: 800 characters: expected a resource name of at most 317`,
		}},
		"resize policy": {func(p *typesv1.Pod) {
			p.Spec.Containers[0].ResizePolicy = []*typesv1.ResizePolicy{
				{ResourceName: "cpu", RestartPolicy: "Maybe"}, {ResourceName: long}, nil,
			}
		}, []string{
			"pod.spec.containers[0].resizePolicy[1].resourceName: 800 characters",
			`pod.spec.containers[0].resizePolicy[""]: only cpu and memory`,
			`pod.spec.containers[0].resizePolicy[""]: "": expected NotRequired or RestartContainer`,
			`pod.spec.containers[0].resizePolicy["cpu"]: "Maybe": expected`,
		}},
		"same name twice": {func(p *typesv1.Pod) {
			p.Spec.InitContainers = []*typesv1.Container{{Name: "main"}}
		}, []string{`pod.spec.containers[0].name: "main" is the name of pod.spec.initContainers[0] already`}},
		"restart policy of an init container": {func(p *typesv1.Pod) {
			p.Spec.InitContainers = []*typesv1.Container{{Name: "a"}, {Name: "b", RestartPolicy: "OnFailure"}}
		}, []string{`pod.spec.initContainers[1].restartPolicy: "OnFailure": expected "Always" or nothing`}},
		"class": {func(p *typesv1.Pod) { p.Status = &typesv1.PodStatus{QosClass: "Gold"} }, []string{
			`pod.status.qosClass: "Gold": expected`,
		}},
		"a container that is not there": {func(p *typesv1.Pod) { p.Spec.Containers = append(p.Spec.Containers, nil) }, []string{
			"pod.spec.containers[1].name: is required",
		}},
		"too many containers": {func(p *typesv1.Pod) {
			p.Spec.Containers = make([]*typesv1.Container, 900)
			p.Spec.InitContainers = make([]*typesv1.Container, 101)
		}, []string{"pod.spec.containers: 1001 containers are more than the 1000 that are allowed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := valid()
			row.change(m)
			_, err := reader.Pod(m)
			got := violations(t, err)
			if len(got) != len(row.want) {
				t.Fatalf("%d violations, want %d:\n\t%s", len(got), len(row.want), strings.Join(got, "\n\t"))
			}
			for _, want := range row.want {
				if !slices.ContainsFunc(got, func(v string) bool { return strings.HasPrefix(v, want) }) {
					t.Errorf("no violation starts with\n\t%s\namong\n\t%s", want, strings.Join(got, "\n\t"))
				}
			}
		})
	}
}

// fields returns the violations that an error carries.
func fields(err error) []errdefs.Violation {
	if fe := new(errdefs.Error); errors.As(err, &fe) {
		return fe.Fields
	}
	return nil
}

// violations prints what an error of class Invalid found.
func violations(t *testing.T, err error) []string {
	t.Helper()
	if errdefs.ClassOf(err) != errdefs.Invalid || len(fields(err)) == 0 {
		t.Fatalf("%v; want class invalid with violations", err)
	}
	var out []string
	for _, v := range fields(err) {
		out = append(out, v.String())
	}
	return out
}

func TestBoundsAreTheReaders(t *testing.T) {
	t.Parallel()
	small := convert.Reader{Bounds: workload.Bounds{Containers: 2}}
	m := valid()
	m.Spec.Containers = append(m.Spec.Containers, &typesv1.Container{Name: "b"})
	if _, err := small.Pod(m); err != nil {
		t.Errorf("two containers: %v", err)
	}
	m.Spec.InitContainers = append(m.Spec.InitContainers, &typesv1.Container{Name: "c"})
	_, err := small.Pod(m)
	if got, want := violations(t, err), "pod.spec.containers: 3 containers are more than the 2 that are allowed"; len(got) != 1 ||
		got[0] != want {
		t.Errorf("three containers: %q, want %q", got, want)
	}
}

// The paths of containers are those that the checks use: one mistake, one path.
func TestContainerPathsAgree(t *testing.T) {
	t.Parallel()
	m := valid()
	m.Spec.InitContainers = []*typesv1.Container{{Name: "a"}, {Name: "b", RestartPolicy: "Always"}}
	m.Spec.Containers = append(m.Spec.Containers, &typesv1.Container{Name: "d"})
	p, err := reader.Pod(m)
	if err != nil {
		t.Fatal(err)
	}
	for i, path := range p.ContainerPaths() {
		broken := proto.Clone(m).(*typesv1.Pod)
		c := slices.Concat(broken.GetSpec().GetInitContainers(), broken.GetSpec().GetContainers())[i]
		c.Resources = limits("cpu=much")
		_, err := reader.Pod(broken)
		want := fmt.Sprintf(`%s.resources.limits["cpu"]: "much": expected a Kubernetes quantity such as 2, 500m or 1Gi`, path)
		if got := violations(t, err); len(got) != 1 || got[0] != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestUnchecked: what can be read is accepted here, and what cannot is reported
// together with all that is wrong besides.
func TestUnchecked(t *testing.T) {
	t.Parallel()
	pod := func(cpu string) *typesv1.Pod {
		return fromJSON(t, `{"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "`+cpu+`"}}}]}}`)
	}
	if _, err := reader.Unchecked(pod("-1")); err != nil {
		t.Errorf("a pod that can be read: %v", err)
	}
	fields := func(err error) (out []string) {
		var invalid *errdefs.Error
		if !errors.As(err, &invalid) || invalid.Class != errdefs.Invalid {
			t.Fatalf("%v: expected an error of class Invalid", err)
		}
		for _, v := range invalid.Fields {
			out = append(out, v.Field)
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	limits := `pod.spec.containers[0].resources.limits["cpu"]`
	for cpu, read := range map[string]func(*typesv1.Pod) (workload.Pod, error){"lots": reader.Unchecked, "-1": reader.Pod,
		"some": reader.Pod} {
		_, err := read(pod(cpu))
		if got := fields(err); !slices.Contains(got, limits) || !slices.Contains(got, "pod.metadata.uid") {
			t.Errorf("%s: %q are wrong", cpu, got)
		}
	}
}
