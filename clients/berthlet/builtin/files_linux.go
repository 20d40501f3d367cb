package builtin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/seccomp"
)

// Names of files and directories; see the package comment.
const (
	bundleFile  = "bundle.json"
	lifePipe    = "life"
	startPipe   = "start"
	createdFile = "created.json"
	startedFile = "started.json"
	exitFile    = "exit.json"
	keeperLog   = "keeper.log"
	podFile     = "pod.json"
	rootDir     = "root"
	diffDir     = "diff"
	workDir     = "work"
)

// bundle is what a keeper makes a container from.
type bundle struct {
	Spec container.Spec
	OCI  *specs.Spec
	// Layers of the image, the topmost first.
	Layers []string
	// Filter is the seccomp filter; nil for a container without one.
	Filter *seccomp.Filter
	// Run is libcontainer's directory.
	Run      string
	LogBytes int64
}

// created is a container that waits for its start, or was started.
type created struct {
	PID int
	At  time.Time
	// Boot is the machine's boot that the process belongs to.
	Boot string
}

// bootID identifies this boot of the machine: random(4).
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}

type started struct{ At time.Time }

type exit struct {
	Code   int
	Reason string
	At     time.Time
}

// write makes a file that is there whole or not at all, also after a crash of the
// machine.
func write(dir, name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, name+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// read reads a file that write made; false if it is not there.
func read(dir, name string, v any) (bool, error) {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return false, fmt.Errorf("read %s: %w", filepath.Join(dir, name), err)
	}
	return true, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// kept reports whether the keeper of a container is there.
func kept(dir string) (bool, error) {
	fd, err := unix.Open(filepath.Join(dir, lifePipe), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find the keeper of %s: %w", filepath.Base(dir), err)
	}
	defer func() { _ = unix.Close(fd) }()
	// The pipe has no data: a read returns EAGAIN while it is open, or end of file.
	switch _, err = unix.Read(fd, make([]byte, 1)); {
	case errors.Is(err, unix.EAGAIN):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("find the keeper of %s: %w", filepath.Base(dir), err)
	}
	return false, nil
}
