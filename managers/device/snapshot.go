package device

import (
	"cmp"
	"iter"
	"slices"
	"time"
)

// Snapshot is the inventory at one moment. It never changes and may be shared.
type Snapshot struct {
	revision   uint64
	resources  []*Resource // by name
	superseded chan struct{}
}

func newSnapshot(revision uint64, resources []*Resource) *Snapshot {
	return &Snapshot{revision, resources, make(chan struct{})}
}

// Superseded is closed when there is a newer snapshot. Who takes a snapshot, looks
// at it, and then waits for this misses no change.
func (s *Snapshot) Superseded() <-chan struct{} { return s.superseded }

// Revision counts the events before the snapshot that changed something.
func (s *Snapshot) Revision() uint64 { return s.revision }

// Resource finds a known resource by name.
func (s *Snapshot) Resource(name string) (*Resource, bool) {
	i, ok := s.find(name)
	if !ok {
		return nil, false
	}
	return s.resources[i], true
}

// Resources yields the known resources by name.
func (s *Snapshot) Resources() iter.Seq[*Resource] {
	return func(yield func(*Resource) bool) {
		for _, r := range s.resources {
			if !yield(r) {
				return
			}
		}
	}
}

// Expiry returns the moment after which the next resource loses its capacity;
// false if none is waiting for its plugin.
func (s *Snapshot) Expiry() (time.Time, bool) {
	var first time.Time
	for _, r := range s.resources {
		if end := r.Since.Add(Grace); r.waiting() && (first.IsZero() || end.Before(first)) {
			first = end
		}
	}
	return first, !first.IsZero()
}

func (s *Snapshot) find(name string) (int, bool) {
	return slices.BinarySearchFunc(s.resources, name, func(r *Resource, name string) int { return cmp.Compare(r.Name, name) })
}

// with returns a snapshot that has r in the place of the resource of its name.
func (s *Snapshot) with(r Resource) *Snapshot {
	resources := slices.Clone(s.resources)
	i, ok := s.find(r.Name)
	if ok {
		resources[i] = &r
	} else {
		resources = slices.Insert(resources, i, &r)
	}
	return newSnapshot(s.revision+1, resources)
}

// without returns a snapshot that does not have a resource.
func (s *Snapshot) without(name string) *Snapshot {
	resources := slices.DeleteFunc(slices.Clone(s.resources), func(r *Resource) bool { return r.Name == name })
	return newSnapshot(s.revision+1, resources)
}
