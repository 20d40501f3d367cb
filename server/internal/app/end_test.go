package app_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	apiconfig "github.com/berthd/berth/api/config"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/config"
)

// TestEndWaitsForAdmissions ends berthd during a plugin's call for
// devices: the connection to the plugin outlasts the admission, so what becomes of
// the pod is the plugin's doing and not that of the end. The end has as long as the
// test has a long deadline, so that a busy machine does not cut the admission off.
func TestEndWaitsForAdmissions(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "berth") // sockets need short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	c, _, err := config.Load(config.Sources{Flags: func(c *apiconfig.Config) error {
		c.RootDir, c.Machine, c.Cgroups.Tree = dir, "1s1n4c", apiconfig.TreeMemory
		c.Providers.AllocateTimeout.Duration = 2 * time.Second
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	var log lines
	run := func() *daemon {
		return runDaemon(t, c, slog.New(slog.NewTextHandler(&log, nil)), &app.Stage{Grace: timeout})
	}
	d := run()
	const gpu = "example.com/gpu"
	plugin := script.New(script.Config{Dir: *c.DevicePluginDir, Resource: gpu, Devices: []script.Device{{ID: "g0"}}})
	plugin.Behave(script.Allocate, script.Hang)
	running, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	stopped := make(chan error, 1)
	go func() { stopped <- plugin.Run(running) }()
	t.Cleanup(func() { stop(); <-stopped })
	awaitDevices(t, d.conn, map[string]int64{gpu: 1})

	type answer struct {
		resp *admissionv1.AdmitResponse
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		one := map[string]string{gpu: "1"}
		resp, err := admissionv1.NewAdmissionServiceClient(d.conn).Admit(t.Context(),
			&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: &typesv1.Pod{
				Metadata: &typesv1.PodMetadata{Name: "x", Namespace: "default", Uid: "x"},
				Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
					Name: "main", Resources: &typesv1.ResourceRequirements{Requests: one, Limits: one},
				}}},
			}}})
		answered <- answer{resp, err}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if _, err := plugin.Await(ctx, script.Allocate, 1); err != nil {
		t.Fatal(err)
	}
	d.end()
	got := <-answered
	if got.err != nil || !strings.Contains(got.resp.GetMessage(), "did not answer Allocate within 2s") {
		t.Errorf("%s: %s, %v", got.resp.GetVerdict(), got.resp.GetMessage(), got.err)
	}
	if text := log.String(); !strings.Contains(text,
		`msg="pod rejected" part=admission event=verdict verdict=rejected pod=default/x uid=x reason=UnexpectedAdmissionError`) {
		t.Errorf("the log does not say that the pod was rejected:\n%s", text)
	}

	d = run()
	defer d.end()
	inspect := inspectv1.NewInspectServiceClient(d.conn)
	trace, err := inspect.GetTrace(t.Context(), &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_PodUid{PodUid: "x"}})
	if err != nil || trace.GetTrace().GetMessage() != got.resp.GetMessage() {
		t.Errorf("the next daemon remembers %q, %v", trace.GetTrace().GetMessage(), err)
	}
	if check, err := inspect.Check(t.Context(), &inspectv1.CheckRequest{}); err != nil || len(check.GetFindings()) > 0 {
		t.Errorf("the next daemon's ledger: %v, %v", check.GetFindings(), err)
	}
}

// lines is a log that is read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
