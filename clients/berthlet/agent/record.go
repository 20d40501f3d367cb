package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/lifecycle"
)

// record is the stored state of a pod.
type record struct {
	// Document is the manifest.
	Document json.RawMessage
	Verdict  lifecycle.Verdict
	// Reason, Message and QoS are from berthd's last answer.
	Reason, Message, QoS string
	// Accepted is when the pod was admitted first, Deleted since when it is to go.
	Accepted, Deleted time.Time
	Released          bool
	Containers        map[string]*past
}

// past is the last known state of a container, or of the attempt to create it.
type past struct {
	ID   string
	Seen lifecycle.Seen
	PID  int
	// Reason is the runtime's, for one that has exited.
	Reason string
	// Unbound is true after berthd has accepted the report of the container's exit.
	Unbound bool
	// Unpinned is true after the pins of its volumes were removed, because it has started.
	Unpinned bool
	// Trouble is the text of Seen.Trouble.
	Trouble string
	// Last is the end of the attempt before.
	Last *ending
}

// ending is the end of an attempt.
type ending struct {
	ID, Reason        string
	ExitCode          int
	Started, Finished time.Time
}

// state converts the record for package lifecycle.
func (r *record) state(wait lifecycle.Trouble) lifecycle.State {
	s := lifecycle.State{
		Verdict: r.Verdict, Wait: wait, Deleted: r.Deleted, Released: r.Released,
		Containers: map[string]lifecycle.Seen{},
	}
	for name, p := range r.Containers {
		s.Containers[name] = p.Seen
	}
	return s
}

// past gives the entry of a container.
func (r *record) past(name string) *past {
	if r.Containers == nil {
		r.Containers = map[string]*past{}
	}
	if r.Containers[name] == nil {
		r.Containers[name] = &past{}
	}
	return r.Containers[name]
}

// observe records the runtime's statuses of a pod's containers.
func (r *record) observe(statuses []container.Status, now time.Time) {
	newest := map[string]container.Status{}
	for _, s := range statuses {
		if have, ok := newest[s.Name]; !ok || s.Attempt > have.Attempt {
			newest[s.Name] = s
		}
	}
	for name, s := range newest {
		r.past(name).take(s)
	}
	for name, p := range r.Containers {
		_, there := newest[name]
		if !there && (p.Seen.Phase == lifecycle.Created || p.Seen.Phase == lifecycle.Running) {
			p.Seen.Phase, p.Seen.ExitCode, p.Seen.Finished = lifecycle.Exited, 137, now
			p.Reason, p.PID = container.Lost, 0
		}
	}
}

var phases = map[container.Phase]lifecycle.Phase{
	container.Created: lifecycle.Created, container.Running: lifecycle.Running, container.Exited: lifecycle.Exited,
}

// take replaces the state with a status. The state of another attempt becomes the last end.
func (p *past) take(s container.Status) {
	seen := lifecycle.Seen{
		Phase: phases[s.Phase], Attempt: s.Attempt, ExitCode: s.ExitCode,
		Started: s.Started, Finished: s.Finished, Pause: s.Pause,
	}
	if p.ID == s.ID {
		seen.Asked, seen.Told, seen.Trouble = p.Seen.Asked, p.Seen.Told, p.Seen.Trouble
		if p.Seen.Phase == lifecycle.Created && !seen.Started.IsZero() {
			seen.Trouble, p.Trouble = lifecycle.Trouble{}, "" // only the answer of its start was lost
		}
	} else {
		if p.ID != "" {
			p.Last = &ending{ID: p.ID, Reason: p.Reason, ExitCode: p.Seen.ExitCode, Started: p.Seen.Started, Finished: p.Seen.Finished}
		}
		p.Unbound, p.Unpinned, p.Trouble = false, false, ""
	}
	p.ID, p.Seen, p.PID, p.Reason = s.ID, seen, s.PID, s.Reason
}

// began reports whether the container has started, or has ended before.
func (p *past) began() bool {
	return p.Seen.Phase == lifecycle.Running || p.Seen.Phase == lifecycle.Exited
}

const recordFile = "pod.json"

// save writes the record into a directory atomically, unless it equals before. It returns the
// saved text.
func (r *record) save(dir string, before []byte) ([]byte, error) {
	text, err := json.MarshalIndent(r, "", " ")
	if err == nil && bytes.Equal(text, before) {
		return before, nil
	}
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = replaceFile(filepath.Join(dir, recordFile), text, 0o600)
	}
	if err != nil {
		return before, fmt.Errorf("write the record of a pod: %w", err)
	}
	return text, nil
}

// replaceFile writes a temporary file, syncs it and renames it, so that a crash of the machine
// leaves the old or the new file.
func replaceFile(path string, text []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
