package apiconformance

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// agent is a program of another module: an agent and a hint provider.
const agent = `package main

import (
	"context"
	"fmt"
	"os"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/hintprovider"
)

type tapes struct{}

func (tapes) Name() string { return "tapes" }

func (tapes) Hints(_ context.Context, r *hintprovider.Request) ([]*typesv1.TopologyHints, error) {
	if len(r.Allocations) > 3 {
		return nil, hintprovider.Refuse("OutOfTapes", "example.com/tape", "no drive is free")
	}
	return nil, nil
}

func (tapes) Plan(context.Context, *hintprovider.Request, *typesv1.TopologyHint) ([]*typesv1.Claim, error) {
	return nil, nil
}

func (tapes) Prepare(context.Context, string, *hintprovider.Request, []*typesv1.Claim) ([]*hintv1.Grant, error) {
	return nil, nil
}

func run(ctx context.Context) error {
	c, err := berth.Dial(ctx, "", berth.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	v, err := c.Admission().Admit(ctx, &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: &typesv1.Pod{}}})
	if berth.IsUnavailable(err) {
		return nil
	}
	fmt.Println(v.GetVerdict())
	return hintprovider.Run(ctx, tapes{}, hintprovider.Options{Socket: "tapes.sock"})
}

func main() {
	if err := run(context.Background()); err != nil {
		os.Exit(1)
	}
}
`

// TestOtherModule: a program of another module compiles against the messages, clients/berth and
// clients/hintprovider. Nothing is downloaded.
func TestOtherModule(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"main.go": agent, "go.sum": string(sums),
		"go.mod": "module example.com/agent\n\ngo 1.25\n\nrequire github.com/berthd/berth v0.0.0\n\nreplace github.com/berthd/berth => " +
			root + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("the program is compiled with the Go toolchain: %v", err)
	}
	cmd := exec.Command("go", "vet", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GONOSUMDB=*", "GONOSUMCHECK=1", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}
