// Package importer stores the state files of a kubelet in the ledger, so that running pods
// keep what they have.
//
// Words:
//
//   - facts: the content of a state file, as package kubelet reads it.
//   - given pods: the pods that the caller sends with the file. Files have no specifications.
//   - outcome: what an import means for a pod: it is new, it has more claims, or everything
//     was known.
//
// Invariants: an import is one commit, or changes nothing. A pod in the ledger keeps its
// claims. Facts that the rules do not allow are taken with Force only, and reported.
//
// The package decides what the ledger gets. Locks, cgroups, claim records and the commit
// are those of admission.Engine.Adopt.
//
// Other modules may import this package, and every release may change it.
package importer

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
)

// Request is a request to import a kubelet's state file.
type Request struct {
	Kind kubelet.Kind
	Data []byte
	// Settings of the kind's manager.
	Settings kubelet.Settings
	// Owner is the agent of pods that are not in the ledger; empty means
	// ledger.DefaultOwner.
	Owner string
	// Pods in the file, as the caller sent them, before defaulting.
	Pods []workload.Pod
	// ContainerIDs and SkipUnknown are as in kubelet.Input.
	ContainerIDs map[string]ledger.Owner
	SkipUnknown  bool
	// Force takes the entries that can be, and lists the others. Without it a file with an entry that no kubelet
	// would start with is refused.
	Force  bool
	DryRun bool
}

// Outcomes of a pod of an import.
const (
	// New: the pod was not in the ledger.
	New = "new"
	// Extended: some of the pod's claims were not in the ledger.
	Extended = "extended"
	// Known: all claims were in the ledger.
	Known = "known"
)

// Pod is one pod of an import.
type Pod struct {
	Pod     *ledger.Pod
	Outcome string
}

// Result is the result of an import.
type Result struct {
	Facts kubelet.Facts
	// Pods in the order of their uids.
	Pods []Pod
	// Findings about imported claims that the current rules would not allow. The claims are
	// stored, as at a start.
	Findings []check.Finding
	// View with the import; in a dry run the draft's view.
	View *ledger.View
}

// Importer imports state files.
type Importer struct{ Engine *admission.Engine }

// Import stores the facts of a state file in one commit, or nothing.
//
// Errors are those of kubelet.Read, and of class Invalid for invalid pods, Precondition for
// a pod that is in the ledger with another specification, if two owners have the same claim,
// and without Force for entries that contradict the machine, the rules or their container's
// requests; the error names them.
func (im Importer) Import(ctx context.Context, req Request) (Result, error) {
	i := &importing{Request: req, engine: im.Engine, given: map[string]*ledger.Pod{}, notes: map[string][]string{}}
	if err := i.readPods(); err != nil {
		return Result{}, err
	}
	view := i.engine.Ledger.View()
	if req.DryRun {
		err := i.plan(ctx, view)
		return i.out, err
	}
	facts, err := i.read(view, true)
	if err != nil {
		return Result{}, err
	}
	uids := slices.Concat(facts.Pods, slices.Collect(maps.Keys(i.given)))
	view, err = i.engine.Adopt(ctx, "import", uids, func(ctx context.Context, view *ledger.View) (admission.Adoption, error) {
		err := i.plan(ctx, view)
		return i.adoption(), err
	})
	if err != nil {
		return Result{}, err
	}
	i.out.View = view
	for n, p := range i.out.Pods {
		i.out.Pods[n].Pod, _ = view.Pod(p.Pod.UID())
	}
	return i.out, nil
}

// importing is an import in progress.
type importing struct {
	Request
	engine *admission.Engine
	// given are the records of the caller's pods, and notes their changes by defaulting, by
	// uid.
	given map[string]*ledger.Pod
	notes map[string][]string

	// The fields below belong to one plan.
	view  *ledger.View
	draft *ledger.Draft
	out   Result
}

// readPods creates records of the caller's pods, as an admission would.
func (i *importing) readPods() error {
	for n, sent := range i.Pods {
		record, notes, err := i.engine.Record(sent, "import")
		if err != nil {
			return err
		}
		uid := record.UID()
		if i.given[uid] != nil {
			var vs errdefs.Violations
			vs.Addf(fmt.Sprintf("pods[%d].metadata.uid", n), "pod %s is given twice", uid)
			return vs.Err("request")
		}
		record.OwnedBy, record.AdmissionID = ledger.OwnedByOf(i.Owner), i.engine.NewID()
		i.given[uid], i.notes[uid] = record, notes
	}
	return nil
}

// adoption returns the planned changes for the engine.
func (i *importing) adoption() admission.Adoption {
	a := admission.Adoption{Draft: i.draft, Source: i.out.Facts.File}
	for _, p := range i.out.Pods {
		switch p.Outcome {
		case New:
			a.Added = append(a.Added, p.Pod.UID())
		case Extended:
			a.Extended = append(a.Extended, p.Pod.UID())
		}
	}
	return a
}
