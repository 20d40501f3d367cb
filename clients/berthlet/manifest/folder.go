// Package manifest watches a directory of pod manifests, as a kubelet watches its static pods. It
// reads every file without a leading dot, YAML or JSON, with one pod or several.
//
// If a file cannot be read, its earlier pods stay wanted until it is readable again or removed.
// If a file has been unreadable since the start, its pods are unknown, so the list of wanted pods
// is incomplete.
package manifest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/api/trust"
)

// Every is the interval of readings without an event, because some file systems send no events.
// The kubelet's fileCheckFrequency is equal.
const Every = 20 * time.Second

// unwatched is how often the folder is read while the kernel cannot watch it.
const unwatched = time.Second

// debounce is the delay between a change and the next reading, because a file is
// often written in several steps.
const debounce = 50 * time.Millisecond

// maxFile bounds a file. A pod in an API server has at most 1.5 MiB.
const maxFile = 8 << 20

// Folder reads manifests. It is for one goroutine.
type Folder struct {
	path     string
	log      *slog.Logger
	last     map[string][]podspec.Manifest // by file, as it was read last
	reported map[string]string             // errors by file that were reported
	gone     bool                          // the folder is not there, and that was reported
	// watcher is nil while the directory is not watched. blind means that the directory exists,
	// cannot be watched, and that this was logged.
	watcher *fsnotify.Watcher
	blind   bool
	// watch makes a watcher; a test may have none left.
	watch func() (*fsnotify.Watcher, error)
}

// Problem is a file whose pods are not run, or not in their current form.
type Problem struct {
	File  string `json:"file"`
	Error string `json:"error"`
}

// Problems lists the files that could not be read the last time, by name, or the folder itself.
func (f *Folder) Problems() []Problem {
	var out []Problem
	for _, name := range slices.Sorted(maps.Keys(f.reported)) {
		if f.reported[name] != "" {
			out = append(out, Problem{File: filepath.Join(f.path, name), Error: f.reported[name]})
		}
	}
	return out
}

// Open makes a folder, which need not be there yet.
func Open(path string, log *slog.Logger) *Folder {
	return &Folder{path: path, log: log, last: map[string][]podspec.Manifest{}, reported: map[string]string{}, watch: fsnotify.NewWatcher}
}

// Watch reads the directory and passes the result of Read to want, at first and after each
// possible change, until the context ends. After each reading it passes the unreadable files to
// problems. A directory that the kernel cannot watch is read once a second.
func (f *Folder) Watch(ctx context.Context, want func(manifests []podspec.Manifest, all bool), problems func([]Problem)) error {
	defer f.unwatch()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var events <-chan fsnotify.Event
		var failures <-chan error
		if f.watcher != nil {
			events, failures = f.watcher.Events, f.watcher.Errors
		}
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-events:
			if !ok {
				f.unwatch() // it has ended by itself; the next look creates another
			}
			timer.Reset(debounce)
		case err := <-failures:
			f.log.Warn("watch the manifests failed", "error", err)
			timer.Reset(debounce)
		case <-timer.C:
			f.look()
			if manifests, all, err := f.Read(); err != nil {
				f.log.Error("read the manifests failed", "error", err)
				problems([]Problem{{File: f.path, Error: err.Error()}})
			} else {
				want(manifests, all)
				problems(f.Problems())
			}
			if f.blind {
				timer.Reset(unwatched)
			} else {
				timer.Reset(Every)
			}
		}
	}
}

// look watches the directory if it exists and the kernel can. A directory that was removed and
// created again must be watched again.
func (f *Folder) look() {
	var err error
	if f.watcher == nil {
		f.watcher, err = f.watch()
	}
	if err == nil && len(f.watcher.WatchList()) == 0 {
		err = f.watcher.Add(f.path)
	}
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		f.unwatch()
		if !f.blind {
			f.log.Warn("the manifest directory cannot be watched; it is read periodically until it can", "folder", f.path, "every",
				unwatched, "error", err)
		}
	}
	if err == nil && f.blind {
		f.log.Info("the manifest directory is watched again", "folder", f.path)
	}
	f.blind = err != nil && !missing
}

func (f *Folder) unwatch() {
	if f.watcher != nil {
		_ = f.watcher.Close()
		f.watcher = nil
	}
}

// Read gives the pods of all files, in the order of their names, and whether these
// are all. Of pods with one uid the first counts. A folder that is not there has no
// pods; one that cannot be read is an error.
func (f *Folder) Read() (manifests []podspec.Manifest, all bool, err error) {
	var entries []fs.DirEntry
	dir, err := trust.OpenFolder(f.path)
	if err == nil {
		defer func() { _ = dir.Close() }() // it was only read
		entries, err = dir.List()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	if gone := err != nil; gone != f.gone {
		if gone {
			f.log.Warn("the manifest directory does not exist, so no pod runs", "folder", f.path)
		}
		f.gone = gone
	}
	all = true
	now := map[string][]podspec.Manifest{}
	owner := map[string]string{}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, ".") || e.IsDir() {
			continue
		}
		held, err := file(dir, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			before, known := f.last[name]
			held, all = before, all && known
		}
		if held != nil {
			now[name] = held
		}
		for _, m := range held {
			uid := m.Pod.GetMetadata().GetUid()
			if first, taken := owner[uid]; taken {
				err = errors.Join(err, fmt.Errorf("the pod with the uid %s is in %s already", uid, first))
				continue
			}
			owner[uid] = name
			manifests = append(manifests, m)
		}
		f.report(name, err)
	}
	f.last = now
	maps.DeleteFunc(f.reported, func(name, _ string) bool {
		return !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == name })
	})
	return manifests, all, nil
}

// report logs an error of a file once.
func (f *Folder) report(name string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && f.reported[name] != text {
		f.log.Error("a file of manifests is wrong; the pods that it held before stay", "file", filepath.Join(f.path, name), "error", err)
	}
	f.reported[name] = text
}

// file reads one file. Only root and berthlet's user may be able to change it: it can have
// privileged pods.
func file(dir *trust.Folder, name string) ([]podspec.Manifest, error) {
	text, err := dir.ReadFile(name, maxFile)
	if err != nil {
		return nil, err
	}
	manifests, err := podspec.DecodeManifests(bytes.NewReader(text), podspec.Options{GenerateUID: true})
	if err != nil {
		return nil, err
	}
	for _, m := range manifests {
		if err := check(m); err != nil {
			return nil, err
		}
	}
	return manifests, nil
}

var (
	// uids become names of directories.
	uidForm = regexp.MustCompile(`^[A-Za-z0-9]([-.A-Za-z0-9]{0,126}[A-Za-z0-9])?$`)
	// label is RFC 1123's, as Kubernetes has it for names of containers.
	label = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	// dns is a name of a pod or namespace.
	dns = regexp.MustCompile(`^[a-z0-9][-.a-z0-9]{0,252}$`)
)

// check refuses names that are unsafe as file names. Berthd checks the other fields.
func check(m podspec.Manifest) error {
	meta := m.Pod.GetMetadata()
	for _, rule := range []struct {
		field, value string
		form         *regexp.Regexp
	}{
		{"metadata.name", meta.GetName(), dns}, {"metadata.namespace", meta.GetNamespace(), label},
		{"metadata.uid", meta.GetUid(), uidForm},
	} {
		if !rule.form.MatchString(rule.value) {
			return fmt.Errorf("%s %q: expected %s", rule.field, rule.value, rule.form)
		}
	}
	bad := slices.IndexFunc(m.Launches, func(l podspec.Launch) bool { return !label.MatchString(l.Name) })
	if bad >= 0 {
		return fmt.Errorf("pod %s: name of a container %q: expected %s", meta.GetName(), m.Launches[bad].Name, label)
	}
	for _, v := range m.Volumes {
		if !label.MatchString(v.Name) {
			return fmt.Errorf("pod %s: name of a volume %q: expected %s", meta.GetName(), v.Name, label)
		}
	}
	return nil
}
