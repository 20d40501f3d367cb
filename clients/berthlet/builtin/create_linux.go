//go:build linux && cgo

package builtin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/managers/errdefs"
)

// Create implements container.Runtime.
func (r *Runtime) Create(ctx context.Context, s container.Spec) error {
	if err := r.create(ctx, s); err != nil {
		return fmt.Errorf("create container %s: %w", s.ID, err)
	}
	return nil
}

func (r *Runtime) create(ctx context.Context, s container.Spec) error {
	if s.CgroupPath == "" {
		return errdefs.Preconditionf("berthd makes no cgroups of containers: start it without --runtime-endpoint and without --cgroups-per-qos=false, or berthlet with --runtime-endpoint")
	}
	dir := r.container(s.ID)
	there, err := r.made(ctx, dir)
	if err != nil || there {
		return err
	}
	// Remove the remains of an interrupted attempt.
	if err := r.wipe(s.ID); err != nil {
		return err
	}
	b, err := r.bundle(ctx, s)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	err = unix.Mkfifo(filepath.Join(dir, lifePipe), 0o600)
	if err == nil {
		err = unix.Mkfifo(filepath.Join(dir, startPipe), 0o600)
	}
	if err == nil {
		err = write(dir, bundleFile, b)
	}
	if err == nil {
		err = r.keep(ctx, dir)
	}
	if err != nil {
		return errors.Join(err, r.wipe(s.ID))
	}
	r.watch(s.ID)
	return nil
}

// made reports whether a container was made. One that a keeper is still making
// is waited for.
func (r *Runtime) made(ctx context.Context, dir string) (bool, error) {
	for {
		if exists(filepath.Join(dir, createdFile)) {
			return true, nil
		}
		alive, err := kept(dir)
		if err != nil || !alive {
			return exists(filepath.Join(dir, createdFile)), err
		}
		if err := pause(ctx); err != nil {
			return false, err
		}
	}
}

// pause waits a moment.
func pause(ctx context.Context) error {
	timer := time.NewTimer(10 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keep starts a keeper and waits until it has made the container.
func (r *Runtime) keep(ctx context.Context, dir string) error {
	life, err := os.OpenFile(filepath.Join(dir, lifePipe), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer life.Close()
	log, err := os.Create(filepath.Join(dir, keeperLog))
	if err != nil {
		return err
	}
	defer log.Close()
	answer, report, err := os.Pipe()
	if err != nil {
		return err
	}
	defer answer.Close()
	cmd := exec.Command("/proc/self/exe", keepVerb, dir)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{report, life} // reportFD, lifeFD
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = report.Close()
	if err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	return readReport(ctx, answer, log.Name())
}

// readReport reads a keeper's report. After a timeout the keeper continues; the next Create finds its
// container.
func readReport(ctx context.Context, answer *os.File, log string) error {
	stop := context.AfterFunc(ctx, func() { _ = answer.Close() })
	defer stop()
	text, err := io.ReadAll(answer)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var said struct{ Error string }
	if err == nil {
		err = json.Unmarshal(text, &said)
	}
	if err != nil {
		last, _ := os.ReadFile(log)
		return errdefs.Unavailablef("the keeper ended without a word: %w: %s", err, bytes.TrimSpace(last))
	}
	if said.Error != "" {
		return errdefs.Unavailablef("%s", said.Error)
	}
	return nil
}
