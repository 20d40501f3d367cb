package driver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/berthd/berth/clients/berth"
)

// TestReadyOnceStored: the driver is ready when the API server has its devices, and not when they were handed over. Until then it says
// why, and it tries again.
func TestReadyOnceStored(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	api := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: "n"}})
	var allowed atomic.Bool
	api.PrependReactor("create", "resourceslices", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if allowed.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "slice", nil)
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	looked := make(chan struct{})
	var most atomic.Int64 // slices that the driver has seen
	p.Slices = func(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
		select {
		case looked <- struct{}{}:
		case <-ctx.Done():
		}
		list, err := api.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		most.Store(max(most.Load(), int64(len(list.Items))))
		return list.Items, nil
	}
	helper, err := kubeletplugin.Start(ctx, p.Driver, kubeletplugin.DriverName(Name), kubeletplugin.NodeName(node),
		kubeletplugin.KubeClient(api),
		kubeletplugin.PluginDataDirectoryPath(p.root), kubeletplugin.RegistrarDirectoryPath(p.root))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); p.Driver.Follow(ctx, helper) }()
	defer func() { cancel(); <-done; helper.Stop() }()
	until := func(what string, is func(error) bool) {
		t.Helper()
		for !is(p.Ready()) {
			select {
			case <-looked:
			case <-ctx.Done():
				t.Fatalf("%s: %v", what, p.Ready())
			}
		}
	}
	until("refused", func(err error) bool { return err != nil && strings.Contains(err.Error(), "forbidden") })
	allowed.Store(true)
	until("allowed", func(err error) bool { return err == nil })
	// The library may write the slice anew at any time, so it counts what the driver has seen.
	if most.Load() == 0 {
		t.Error("ready, and the API server has had no slice")
	}
}

// TestReady: which results of publications make the driver ready. A failed call of the API server changes nothing once it has had
// the devices, and so does a publication that it has just been given.
func TestReady(t *testing.T) {
	t.Parallel()
	away := errors.New("no route to host")
	for _, row := range []struct {
		name      string
		published bool
		errs      []error
		refusal   string
		want      string
	}{
		{name: "nothing yet", want: "not published yet"},
		{name: "stored", errs: []error{nil}},
		{name: "away at first", errs: []error{away}, want: "no route"},
		{name: "away later", published: true, errs: []error{away, away}},
		{name: "handed over", errs: []error{errUnconfirmed}, want: "not published"},
		{name: "changed", published: true, errs: []error{errUnconfirmed, nil}},
		{name: "just changed", published: true, errs: []error{errUnconfirmed}},
		{name: "not stored for long", published: true, errs: []error{errUnconfirmed, errUnconfirmed, errUnconfirmed, errUnconfirmed},
			want: "does not have the devices"},
		{name: "refused", published: true, refusal: "forbidden", errs: []error{errUnconfirmed}, want: "forbidden"},
		{name: "refused once", published: true, refusal: "conflict", errs: []error{errUnconfirmed, nil}},
	} {
		d := &Driver{announcement: announcement{wanted: &measured{}, published: row.published, refusal: row.refusal}}
		for i, err := range row.errs {
			d.judge(err, i+1)
		}
		if err := d.Ready(); (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", row.name, err, row.want)
		}
	}
}

// TestAPIServerAway: while the API server is away and berthd answers, the devices stay healthy, and the prepared claims are
// not admitted again.
func TestAPIServerAway(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	if r := p.prepared(allocated("a", 0, 2, "1Gi")); r.Err != nil {
		t.Fatal(r.Err)
	}
	calls := make(chan struct{})
	p.NodeStatus = func(ctx context.Context) (corev1.NodeStatus, error) {
		select {
		case calls <- struct{}{}:
		case <-ctx.Done():
		}
		return corev1.NodeStatus{}, errors.New("the API server is away")
	}
	want := p.watchHealth()
	want("berthd answers", "numa-0 Healthy; numa-1 Healthy")
	for range 3 { // each is another try
		<-calls
		p.mu.Lock()
		unsure, answered := p.unsure, p.pools != nil
		p.mu.Unlock()
		if r, _ := p.health.get(time.Unix(1, 0)); unsure || !answered || text(r) != "numa-0 Healthy; numa-1 Healthy" {
			t.Errorf("%s; unsure %v", text(r), unsure)
		}
	}
	if err := p.Ready(); err == nil || !strings.Contains(err.Error(), "the API server is away") {
		t.Error(err)
	}
}

// TestServerEnds: when a server of the helper has ended, the kubelet cannot reach the driver, so the program ends.
func TestServerEnds(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	failed := make(chan error, 2)
	p.Fail = func(err error) { failed <- err }
	listeners := make(chan net.Listener, 1)
	helper, err := kubeletplugin.Start(t.Context(), p.Driver, kubeletplugin.DriverName(Name), kubeletplugin.NodeName(node),
		kubeletplugin.KubeClient(fake.NewClientset()),
		kubeletplugin.PluginDataDirectoryPath(p.root), kubeletplugin.RegistrarDirectoryPath(p.root),
		kubeletplugin.RegistrarListener(func(_ context.Context, path string) (net.Listener, error) {
			l, err := net.Listen("unix", path)
			listeners <- l
			return l, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer helper.Stop()
	p.HandleError(t.Context(), errors.Join(errors.New("a conflict"), kubeletplugin.ErrRecoverable), "processing slices")
	if err := (<-listeners).Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !strings.Contains(err.Error(), "registrar gRPC server failed") {
		t.Error(err)
	}
}

// TestSilentBerthd: while berthd accepts connections and answers nothing, readiness and metrics do not wait for it, calls leave the
// queue when their context ends, and claims are not restored for ever.
func TestSilentBerthd(t *testing.T) {
	t.Parallel()
	root, err := os.MkdirTemp("", "dra") // paths of sockets are short (unix(7))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(root) }()
	l, err := net.Listen("unix", root+"/s")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	client, err := berth.Dial(t.Context(), root+"/s", berth.Options{Owner: Owner})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	cdi := filepath.Join(root, "cdi")
	if err := os.Mkdir(cdi, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(cdi, fileName("a")), fileOf(t, func(*claim, *[]device) {}), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Client: client, NodeName: node, CDIDirectory: cdi, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	d.pools, d.limit, d.unsure = map[uint32]pool{}, time.Hour, false
	ctx, cancel := context.WithCancel(t.Context())
	prepared := make(chan kubeletplugin.PrepareResult)
	go func() {
		all, _ := d.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{allocated("b", 0, 1, "1Gi")})
		prepared <- all["b"]
	}()
	for len(d.gate) == 0 && t.Context().Err() == nil {
		if err := d.Ready(); err == nil {
			t.Fatal("the driver is ready")
		}
	}
	if err := d.Ready(); err == nil || d.CountedTwice() || d.Unrestored() != 0 {
		t.Error(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	errs, _ := d.UnprepareResourceClaims(ended, []kubeletplugin.NamespacedObject{{UID: "a"}})
	if err := errs["a"]; err == nil || !strings.Contains(err.Error(), "another claim is being prepared") {
		t.Error(err)
	}
	cancel()
	if r := <-prepared; r.Err == nil {
		t.Error("a claim is prepared without berthd")
	}
	d.limit, d.unsure = time.Millisecond, true
	d.restoreNow(t.Context())
	if d.mu.Lock(); !d.unsure {
		t.Error("berthd may have lost the claims, and they are not restored again")
	}
	d.mu.Unlock()
}
