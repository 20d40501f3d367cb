package manifest

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/berthd/berth/api/podspec"
)

// TestNoWatches: where the kernel has no watches left the folder is read once a second, and the log has one line about it.
func TestNoWatches(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := Open(dir, slog.New(slog.NewTextHandler(&log, nil)))
		f.watch = func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }
		pods := -1
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- f.Watch(ctx, func(manifests []podspec.Manifest, _ bool) { pods = len(manifests) }, func([]Problem) {})
		}()
		synctest.Wait()
		if pods != 0 {
			t.Errorf("%d pods at first", pods)
		}
		text := "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}\n"
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second) // on synctest's clock
		synctest.Wait()
		if pods != 1 {
			t.Errorf("%d pods two seconds after the manifest came", pods)
		}
		if got := strings.Count(log.String(), "cannot be watched"); got != 1 {
			t.Errorf("said %d times:\n%s", got, &log)
		}
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestWatchedAgain: as soon as the kernel can the folder is watched, and a folder that is not there is no trouble.
func TestWatchedAgain(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	dir := filepath.Join(t.TempDir(), "m")
	f := Open(dir, slog.New(slog.NewTextHandler(&log, nil)))
	defer f.unwatch()
	f.look()
	if f.blind || log.Len() > 0 {
		t.Errorf("a folder that is not there: %v, %s", f.blind, &log)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f.unwatch()
	f.watch = func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }
	f.look()
	f.watch = fsnotify.NewWatcher
	f.look()
	if f.blind || len(f.watcher.WatchList()) != 1 || strings.Count(log.String(), "is watched again") != 1 {
		t.Errorf("not watched again: %v, %s", f.blind, &log)
	}
}
