package main

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/hack/testing/nodetest"
	kubelets "github.com/berthd/berth/server/internal/kubeletnode/nodetest"
)

// TestObserve: a berthd that observes a node answers with what its kubelet has given, refuses to change anything, and leaves nothing behind
// but its socket: nothing of the node's files is written, and nothing is kept.
func TestObserve(t *testing.T) {
	t.Parallel()
	recordings := kubelets.Recordings(t)
	i := slices.IndexFunc(recordings, func(r kubelets.Recording) bool { return r.Name == "v2-systemd-restricted/full-A" })
	if i < 0 {
		t.Fatal("the recording is not there")
	}
	root := recordings[i].Write(t)
	before := filesOf(t, root)
	dir, err := os.MkdirTemp("", "berthd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var log bytes.Buffer
	cmd := exec.Command(os.Args[0], "--observe="+root, "--root-dir", dir)
	cmd.Env = append(os.Environ(), asDaemon+"=1")
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "berth.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	allocations := allocationv1.NewAllocationServiceClient(conn)
	exclusive := 0
	nodetest.Eventually(t, timeout, "it answers", func() bool {
		list, err := allocations.List(t.Context(), &allocationv1.ListRequest{})
		for _, p := range list.GetPods() {
			for _, c := range p.GetContainers() {
				if c.GetCpus() != nil {
					exclusive++
				}
			}
		}
		return err == nil
	})
	if exclusive == 0 {
		t.Error("no container has CPUs of its own")
	}
	_, err = admissionv1.NewAdmissionServiceClient(conn).RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: "x"})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a removal: %v", err)
	}
	if files := filesOf(t, dir); len(files) != 1 || !strings.HasPrefix(files[0], "berth.sock ") {
		t.Errorf("while it runs its directory has %q", files)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("it ends with %v:\n%s", err, &log)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
	if after := filesOf(t, root); !slices.Equal(before, after) {
		t.Errorf("the node's files were\n%q\nand are\n%q", before, after)
	}
	// What config dump prints is a configuration of its own.
	var out, errs bytes.Buffer
	if code := execute(t.Context(), &out, &errs, []string{"config", "dump", "--observe=" + root}); code != 0 {
		t.Fatal(errs.String())
	}
	dump := filepath.Join(t.TempDir(), "dump.yaml")
	if err := os.WriteFile(dump, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	first := out.String()
	out.Reset()
	if code := execute(t.Context(), &out, &errs, []string{"config", "dump", "--config", dump}); code != 0 || out.String() != first {
		t.Errorf("the dump of the dump: %s%s", out.String(), errs.String())
	}
	out.Reset()
	if code := execute(t.Context(), &out, &errs, []string{"config", "validate", "--config", dump}); code != 0 ||
		!strings.Contains(out.String(), "the configuration is valid") {
		t.Errorf("it is not valid: %s%s", out.String(), errs.String())
	}
}

// filesOf is what is below a directory, with sizes and times.
func filesOf(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			name, _ := filepath.Rel(dir, path)
			out = append(out, name+" "+info.ModTime().String())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestObserveDecidesNothing: a field or a flag that decides is refused by its name.
func TestObserveDecidesNothing(t *testing.T) {
	t.Parallel()
	kubelet := filepath.Join(t.TempDir(), "kubelet.yaml")
	if err := os.WriteFile(kubelet, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{
		"--cpu-manager-policy=static":  "cpu.policy: expected nothing",
		"--kubelet-config=" + kubelet:  "--kubelet-config-dir: expected nothing",
		"--state-dir=/var/lib/another": "stateDir: expected nothing",
		"--kubelet=10.0.0.1":           "observe.nodeName: expected a name",
	} {
		var out, errs bytes.Buffer
		if code := execute(t.Context(), &out, &errs, []string{"config", "validate", "--observe", flag}); code == 0 ||
			!strings.Contains(errs.String(), want) {
			t.Errorf("%s: %d, %s", flag, code, errs.String())
		}
	}
	var out, errs bytes.Buffer
	if code := execute(t.Context(), &out, &errs, []string{"config", "validate", "--kubelet=10.0.0.1", "--node-name=n"}); code == 0 ||
		!strings.Contains(errs.String(), "observe.root: ") {
		t.Errorf("without --observe: %d, %s", code, errs.String())
	}
}
