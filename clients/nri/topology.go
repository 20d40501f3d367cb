package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/nri/publish"
	"github.com/berthd/berth/managers/errdefs"
)

const (
	// fieldManager names berth-nri as the writer of fields.
	fieldManager = "berth-nri"
	// maxPublished bounds the devices of the kubelet that are counted.
	maxPublished = 1 << 16
	// maxNames bounds the resources of these devices, as berthd does.
	maxNames = 256
	// freeTimeout bounds a call of berthd.
	freeTimeout = 5 * time.Second
)

// topology publishes the node's NodeResourceTopology object.
type topology struct {
	client    *berth.Client
	devices   *podResources // nil: the kubelet's devices are not counted
	server    *apiServer
	changed   chan struct{}
	publisher *publish.Publisher
	// pending returns the pods, as NAMESPACE/NAME, whose containers have not all started.
	pending func() []string

	owner *publish.Reference // nil until the namespace has been read
}

// newTopology returns a topology that does not run yet; server is nil if none will.
func newTopology(client *berth.Client, devices *podResources, server *apiServer, count *counters, spread time.Duration,
	log *slog.Logger) *topology {
	t := &topology{client: client, devices: devices, server: server, changed: make(chan struct{}, 1)}
	t.publisher = publish.NewPublisher(publish.Config{
		Store: t, Want: t.want, Changed: t.changed, Spread: spread, Log: log,
		Wrote: func(err error) {
			result := "ok"
			if err != nil {
				result = "failed"
			}
			count.writes.WithLabelValues(result).Inc()
		},
	})
	return t
}

// run publishes until the context ends.
func (t *topology) run(ctx context.Context) {
	var tasks sync.WaitGroup
	tasks.Go(func() { t.follow(ctx) })
	t.publisher.Run(ctx)
	tasks.Wait()
}

// follow reports changes of the ledger and of berthd's devices to the publisher.
func (t *topology) follow(ctx context.Context) {
	for ctx.Err() == nil {
		_ = t.watch(ctx) // the policy's own stream logs that berthd is away
		t.change()       // an event may have been missed
		timer := time.NewTimer(publish.Interval)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// published are the events after which the object may be another one.
var published = []allocationv1.EventType{
	allocationv1.EventType_EVENT_TYPE_ADDED, allocationv1.EventType_EVENT_TYPE_REMOVED, allocationv1.EventType_EVENT_TYPE_CHANGED,
	allocationv1.EventType_EVENT_TYPE_SHARED_CPUS, allocationv1.EventType_EVENT_TYPE_DEVICE_RESOURCE,
	allocationv1.EventType_EVENT_TYPE_DEVICE_HEALTH,
	allocationv1.EventType_EVENT_TYPE_POLICY, allocationv1.EventType_EVENT_TYPE_MACHINE,
}

func (t *topology) watch(ctx context.Context) error {
	now, err := t.client.Allocation().GetRevision(ctx, &allocationv1.GetRevisionRequest{})
	if err != nil {
		return err
	}
	stream, err := t.client.Allocation().Watch(ctx, &allocationv1.WatchRequest{FromRevision: now.GetRevision(), Types: published})
	if err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		t.change()
	}
}

func (t *topology) change() {
	select {
	case t.changed <- struct{}{}:
	default: // the publisher has not read the earlier element yet
	}
}

// want computes the object as it should be.
func (t *topology) want(ctx context.Context) (*publish.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, freeTimeout)
	defer cancel()
	devices, err := t.devices.published(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the kubelet's devices: %w", err)
	}
	req := &fitv1.GetFreeResourcesRequest{Owner: t.client.Owner(), PendingPods: t.pending()}
	for _, d := range devices {
		if !d.Nodes.IsEmpty() && !slices.Contains(req.GetNumaResources(), d.Resource) {
			req.NumaResources = append(req.NumaResources, d.Resource)
		}
		if len(req.GetNumaResources()) > maxNames {
			return nil, errdefs.Exhaustedf("the kubelet has devices of more than %d resources", maxNames)
		}
	}
	free, err := t.client.Fit().GetFreeResources(ctx, req)
	if err != nil {
		return nil, err
	}
	return publish.New(t.server.node, t.owner, free.GetFree(), devices), nil
}

// Get implements publish.Store. The owner of the object is the namespace of berth, so that the
// API server deletes the object with it: without its rights, berth cannot delete the object itself.
func (t *topology) Get(ctx context.Context) (*publish.Object, error) {
	if namespace, _, ok := strings.Cut(t.server.set, "/"); ok && t.owner == nil {
		var space corev1.Namespace
		if err := t.server.call(ctx, http.MethodGet, "/api/v1/namespaces/"+url.PathEscape(namespace), nil, &space); err != nil {
			return nil, fmt.Errorf("get namespace %s: %w", namespace, err)
		}
		if space.Name != namespace || space.UID == "" {
			return nil, errdefs.Internalf("the API server answers with namespace %.80q and uid %.80q, expected %q and its uid",
				space.Name, space.UID, namespace)
		}
		t.owner = &publish.Reference{APIVersion: "v1", Kind: "Namespace", Name: space.Name, UID: string(space.UID)}
	}
	var out publish.Object
	err := t.server.call(ctx, http.MethodGet, t.server.topologyPath(), nil, &out)
	var refused *statusError
	if errors.As(err, &refused) && refused.code == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if out.Metadata.Name != t.server.node {
		return nil, errdefs.Internalf("the API server answers with the object of node %.80q, expected %q", out.Metadata.Name, t.server.node)
	}
	return &out, nil
}

// Apply implements publish.Store. Fields that others have written are taken over.
func (t *topology) Apply(ctx context.Context, o *publish.Object) error {
	err := t.server.call(ctx, http.MethodPatch,
		t.server.topologyPath()+"?fieldManager="+fieldManager+"&force=true&fieldValidation=Strict", o, nil)
	var refused *statusError
	if errors.As(err, &refused) && refused.code == http.StatusNotFound {
		return fmt.Errorf("%w: install the CustomResourceDefinition (deploy/kubernetes/crd)", err)
	}
	return err
}

func (a *apiServer) topologyPath() string { return publish.Path + "/" + url.PathEscape(a.node) }

// deleteTopology deletes the node's object.
func (a *apiServer) deleteTopology(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := a.call(ctx, http.MethodDelete, a.topologyPath(), nil, nil)
	var refused *statusError
	if errors.As(err, &refused) && refused.code == http.StatusNotFound {
		return nil
	}
	return err
}

// published returns the devices that the kubelet can give to pods, and whether a pod has them.
func (r *podResources) published(ctx context.Context) ([]publish.Device, error) {
	if r == nil {
		return nil, nil
	}
	if _, err := os.Stat(r.path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no kubelet, or not yet
	}
	size := grpc.MaxCallRecvMsgSize(maxResources)
	all, err := r.lister.GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{}, size)
	if err != nil || len(all.GetDevices()) == 0 {
		return nil, err
	}
	list, err := r.lister.List(ctx, &podresourcesv1.ListPodResourcesRequest{}, size)
	if err != nil {
		return nil, err
	}
	if len(list.GetPodResources()) == 0 { // this runs in a pod
		return nil, errdefs.Unavailablef("the kubelet lists no pods yet, so it is not known which devices they have")
	}
	type name struct{ resource, id string }
	used := map[name]bool{}
	for _, pod := range list.GetPodResources() {
		for _, c := range pod.GetContainers() {
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					used[name{d.GetResourceName(), id}] = true
				}
			}
		}
	}
	var out []publish.Device
	at := map[name]int{}
	for _, d := range all.GetDevices() {
		nodes, err := nodesOf(d)
		if err != nil {
			return nil, err
		}
		for _, id := range d.GetDeviceIds() {
			key := name{d.GetResourceName(), id}
			// Kubelets before 1.23 report a device once for each of its NUMA nodes.
			if i, twice := at[key]; twice {
				out[i].Nodes |= nodes
				continue
			}
			if at[key] = len(out); len(out) >= maxPublished {
				return nil, errdefs.Exhaustedf("the kubelet has more than %d devices", maxPublished)
			}
			out = append(out, publish.Device{Resource: key.resource, ID: id, Nodes: nodes, Used: used[key]})
		}
	}
	return out, nil
}
