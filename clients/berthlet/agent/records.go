package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/berthd/berth/api/input"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berthlet/container"
)

// damagedError means that a record can never be read; a repetition does not help.
type damagedError struct{ error }

// Unwrap returns the cause.
func (e damagedError) Unwrap() error { return e.error }

// maxRecord bounds a record, which holds a pod of a manifest.
const maxRecord = 32 << 20

// load reads the record of a directory with its manifest. The error is fs.ErrNotExist if there is
// none, and a damagedError if its content is invalid. Other errors are temporary.
func load(dir string) (*record, podspec.Manifest, error) {
	text, err := input.Regular(filepath.Join(dir, recordFile), maxRecord)
	if err != nil {
		return nil, podspec.Manifest{}, err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, podspec.Manifest{}, damagedError{err}
	}
	manifests, err := podspec.DecodeManifests(bytes.NewReader(r.Document), podspec.Options{})
	if err == nil && len(manifests) == 0 {
		err = errors.New("it holds no manifest")
	}
	if err == nil && manifests[0].Pod.GetMetadata().GetUid() != filepath.Base(dir) {
		err = fmt.Errorf("it is the record of pod %s", manifests[0].Pod.GetMetadata().GetUid())
	}
	if err != nil {
		return nil, podspec.Manifest{}, damagedError{err}
	}
	return &r, manifests[0], nil
}

// records reads the records of earlier runs, and marks the pods whose records cannot be read.
func (a *Agent) records() ([]*worker, error) {
	entries, err := os.ReadDir(a.place.pods)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*worker
	for _, e := range entries {
		if !e.IsDir() {
			a.Log.Warn("unknown file in the directory of pod records", "file", filepath.Join(a.place.pods, e.Name()))
			continue
		}
		if w := a.recall(e.Name()); w != nil {
			out = append(out, w)
		} else if a.unread[e.Name()] {
			a.wakeRecords()
		}
	}
	return out, nil
}

// recall creates the worker of a pod of an earlier run. It returns nil if the record cannot be
// read; the pod is then unread or recordless. A damaged record is moved aside. The caller holds
// mu.
func (a *Agent) recall(uid string) *worker {
	rec, m, err := load(a.place.pod(uid))
	var damaged damagedError
	if errors.As(err, &damaged) {
		err = a.setAside(uid, err)
	}
	switch {
	case err == nil:
		delete(a.unread, uid)
		return a.newWorker(m, rec)
	case errors.Is(err, fs.ErrNotExist):
		delete(a.unread, uid)
		a.recordless[uid] = true
	default:
		if !a.unread[uid] {
			a.Log.Error("the record of a pod cannot be read now; the pod is not changed, and berthlet will read the record again", "uid",
				uid, "error", err)
		}
		a.unread[uid] = true
	}
	return nil
}

// setAside moves a damaged record out of the way; nothing is deleted. It returns fs.ErrNotExist, as for a record that is
// not there any more.
func (a *Agent) setAside(uid string, damage error) error {
	record := filepath.Join(a.place.pod(uid), recordFile)
	aside := filepath.Join(a.Dir, "damaged", uid+"."+a.Now().UTC().Format("20060102T150405.000")+".json")
	err := os.MkdirAll(filepath.Dir(aside), 0o700)
	if err == nil {
		err = os.Rename(record, aside)
	}
	if err != nil {
		return fmt.Errorf("set the damaged record %s aside: %w", record, err)
	}
	a.Log.Error("the record of a pod is damaged and was set aside; the pod keeps running if it has a manifest",
		"uid", uid, "record", aside, "error", damage)
	return fs.ErrNotExist
}

// undecided reports whether a pod has no record now, and may continue all the same.
func (a *Agent) undecided(uid string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.unread[uid] || a.recordless[uid]
}

// living lists the pods that are not over: pods with a worker, pods with an unreadable record,
// and pods without a record that have containers.
func (a *Agent) living(ctx context.Context, workers []*worker) (uids []string, err error) {
	for _, w := range workers {
		if !w.over() {
			uids = append(uids, w.uid)
		}
	}
	a.mu.Lock()
	uids = slices.AppendSeq(uids, maps.Keys(a.unread))
	recordless := maps.Clone(a.recordless)
	a.mu.Unlock()
	var statuses []container.Status
	if len(recordless) > 0 {
		if statuses, err = a.Runtime.List(ctx, ""); err != nil {
			return nil, err
		}
	}
	for _, s := range statuses {
		if recordless[s.PodUID] {
			uids = append(uids, s.PodUID)
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids), nil
}

// wakeRecords wakes followRecords.
func (a *Agent) wakeRecords() {
	select {
	case a.recordsWoken <- struct{}{}:
	default: // a pass is due already
	}
}

// followRecords repeats reading unreadable records, and ends pods without a record that are not
// wanted.
func (a *Agent) followRecords(ctx context.Context) {
	timer := time.NewTimer(never)
	defer timer.Stop()
	var delay time.Duration
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.recordsWoken:
		case <-timer.C:
		}
		a.readAgain()
		failed := false
		for uid := a.unwanted(); uid != ""; uid = a.unwanted() {
			if err := a.endRecordless(ctx, uid); err != nil {
				a.Log.Warn("end a pod without a record failed", "uid", uid, "error", err)
				failed = true
				break
			}
		}
		a.mu.Lock()
		again := failed || len(a.unread) > 0
		a.mu.Unlock()
		if delay = a.Retry.After(delay); !again {
			delay = 0
			timer.Reset(never)
			continue
		}
		timer.Reset(delay)
	}
}

// readAgain tries to read the records that could not be read.
func (a *Agent) readAgain() {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := len(a.unread)
	for uid := range a.unread {
		if w := a.recall(uid); w != nil {
			a.Log.Info("the record of a pod can be read again", "uid", uid)
			a.begin(w.manifest, w.rec)
			a.workers[uid].markUncertain()
		}
	}
	if len(a.unread) < before {
		a.compare()
	}
}

// unwanted chooses a pod without a record that is to end, and notes that it is ending; empty if there is none.
func (a *Agent) unwanted() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range a.recordless {
		if _, wanted := a.wanted[uid]; a.wanted != nil && !wanted && (a.all || a.dropped[uid]) {
			a.ending = uid
			break
		}
	}
	return a.ending
}

// endRecordless ends a pod without a record by its containers. If the pod is wanted again
// meanwhile, it starts afterwards.
func (a *Agent) endRecordless(ctx context.Context, uid string) error {
	err := a.removeRecordless(ctx, uid)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ending = ""
	if err == nil {
		delete(a.recordless, uid)
	}
	if _, wanted := a.wanted[uid]; wanted {
		a.compare()
	}
	return err
}

func (a *Agent) removeRecordless(ctx context.Context, uid string) error {
	statuses, err := a.Runtime.List(ctx, uid)
	if err != nil {
		return err
	}
	for _, s := range statuses {
		a.Log.Warn("removing a container of a pod without a record and without a manifest", "id", s.ID, "uid", uid)
		if err := a.Runtime.Remove(ctx, s.ID); err != nil {
			return err
		}
	}
	if err := a.Runtime.Close(ctx, uid); err != nil {
		return err
	}
	if err := a.Volumes.ReleasePod(uid); err != nil {
		return err
	}
	if _, err := a.Node.Remove(ctx, uid); err != nil {
		return err
	}
	return os.RemoveAll(a.place.pod(uid))
}
