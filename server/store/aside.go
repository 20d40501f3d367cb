package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
)

// Damage is the report on a file that was set aside.
type Damage struct {
	// Time of the discovery.
	Time time.Time `json:"time"`
	// File as it was named, and SetAside as it is named now.
	File     string `json:"file"`
	SetAside string `json:"set_aside"`
	// Error that the file was refused with.
	Error string `json:"error"`
	// Report of the ledger; its findings are empty if the file's pages were too
	// damaged to read values.
	Report ledger.Report `json:"report"`
}

const (
	damagedInfix = ".damaged-"
	reportSuffix = ".json"
)

// OpenLedger opens the ledger that is in the store. If it is damaged, the file
// is set aside, the ledger starts empty and Damage says so. Damage says so again
// at every start until the new ledger has had its first commit, since the process
// that found it may not have lived to act on it; it is nil otherwise. All other
// errors are those of ledger.Open. Whoever wants damage to be an error calls
// ledger.Open. A ledger that starts empty has the time as the base of its
// revisions, and an epoch of its own.
func (s *Store) OpenLedger(ctx context.Context, o ledger.Options, now time.Time) (*ledger.Ledger, ledger.Report, *Damage, error) {
	o.Journal, o.Epoch = s, uint64(max(0, now.UnixMilli()))
	if o.EpochID == 0 {
		o.EpochID = NewEpochID()
	}
	l, report, err := ledger.Open(ctx, o)
	switch {
	case err == nil && report.Generation == 0:
		damage, err := newest(s.path)
		if err != nil {
			return nil, report, nil, err
		}
		return l, report, damage, nil
	case err == nil || fault.ClassOf(err) != fault.Corrupt:
		return l, report, nil, err
	}
	damage, err := s.setAside(now, err, report)
	if err != nil {
		return nil, report, nil, err
	}
	l, report, err = ledger.Open(ctx, o)
	return l, report, &damage, err
}

// newest returns the last report, nil if there is none.
func newest(path string) (*Damage, error) {
	all, err := Damages(path)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[len(all)-1], nil
}

// setAside renames the file, leaves a report beside it and opens an empty one.
// The report is written first: a crash in between finds the damage again.
func (s *Store) setAside(now time.Time, cause error, report ledger.Report) (Damage, error) {
	if s.opts.ReadOnly {
		return Damage{}, fault.Preconditionf("set %s aside: it is open for reading only", s.path)
	}
	s.opts.Failpoint.Hit(BeforeSetAside)
	if s.db != nil {
		if err := s.db.Close(); err != nil {
			return Damage{}, unavailable("close", s.path, err)
		}
	}
	s.db, s.damage, s.broken, s.last = nil, nil, nil, 0
	d := Damage{Time: now.UTC(), File: s.path, SetAside: freeName(s.path, now), Error: cause.Error(), Report: report}
	if err := writeReport(d); err != nil {
		return Damage{}, err
	}
	s.opts.Failpoint.Hit(AfterReport)
	if err := os.Rename(s.path, d.SetAside); err != nil {
		return Damage{}, unavailable("set aside", s.path, err)
	}
	s.opts.Failpoint.Hit(AfterRename)
	if err := syncDir(filepath.Dir(s.path)); err != nil {
		return Damage{}, err
	}
	return d, s.open()
}

// freeName returns a name for the damaged file that is not taken.
func freeName(path string, now time.Time) string {
	name := path + damagedInfix + now.UTC().Format("20060102T150405Z")
	for n := 1; ; n++ {
		candidate := name
		if n > 1 {
			candidate = fmt.Sprintf("%s-%d", name, n)
		}
		if _, err := os.Lstat(candidate); errors.Is(err, os.ErrNotExist) {
			return candidate
		}
	}
}

func writeReport(d Damage) error {
	path := d.SetAside + reportSuffix
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return fault.Internalf("report damage of %s: %w", d.File, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return unavailable("report damage in", path, err)
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return unavailable("report damage in", path, err)
	}
	return nil
}

// Damages returns the reports on all files that were ever set aside for the file
// at path, oldest first. Reports without a file, which a crash can leave, do not
// count; a report that cannot be read says so in Error.
func Damages(path string) ([]Damage, error) {
	dir, prefix := filepath.Dir(path), filepath.Base(path)+damagedInfix
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, unavailable("list", dir, err)
	}
	var all []Damage
	for _, entry := range names {
		name, isReport := strings.CutSuffix(entry.Name(), reportSuffix)
		if !isReport || !strings.HasPrefix(name, prefix) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, unavailable("read", filepath.Join(dir, entry.Name()), err)
		}
		var d Damage
		if err := json.Unmarshal(text, &d); err != nil {
			d = Damage{File: path, SetAside: filepath.Join(dir, name), Error: fmt.Sprintf("the report cannot be read: %v", err)}
		}
		all = append(all, d)
	}
	slices.SortStableFunc(all, func(a, b Damage) int { return a.Time.Compare(b.Time) })
	return all, nil
}
