//go:build linux

package input_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/api/input"
	"github.com/berthd/berth/managers/errdefs"
)

// TestBounds: nothing is read beyond the bound, and devices, directories and sparse files are refused at once.
func TestBounds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	small, large := filepath.Join(dir, "small"), filepath.Join(dir, "large")
	if err := os.WriteFile(small, []byte("1234"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, 1<<40)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		small: "", large: "has more than 4 bytes", "/dev/zero": "is a device: expected a regular file", dir: "is a directory",
		"/proc/self/status": "more than 4 bytes",
	} {
		text, err := input.FileOrStream(t.Context(), path, nil, 4)
		if want == "" && (err != nil || string(text) != "1234") || want != "" &&
			(errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(err.Error(), want) || len(text) > 0) {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	if _, err := input.File(t.Context(), small+"x", 4); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	endless := zeros{}
	if _, err := input.FileOrStream(t.Context(), "-", endless, 1<<10); errdefs.ClassOf(err) != errdefs.Invalid ||
		!strings.Contains(err.Error(), "standard input has more than 1024 bytes") {
		t.Errorf("an endless stream: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestPipe: a pipe is read to its end, and waiting for its writer or for its text ends with the context.
func TestPipe(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- os.WriteFile(path, []byte("text"), 0) }()
	if text, err := input.File(t.Context(), path, 4); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := input.File(ctx, path, 4)
		done <- err
	}()
	// A writer that opens the pipe and writes nothing.
	writer, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("with a silent writer: %v", err)
	}
	if _, err := input.File(ctx, path, 4); !errors.Is(err, context.Canceled) {
		t.Errorf("without a writer: %v", err)
	}
	silent, other := io.Pipe()
	defer other.Close()
	if _, err := input.Stream(ctx, silent, "standard input", 4); !errors.Is(err, context.Canceled) {
		t.Errorf("a silent stream: %v", err)
	}
}
