package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/api/ledgerfile"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/server/internal/host/disk"
	"github.com/berthd/berth/server/internal/store/epoch"
)

const (
	damagedInfix = ".damaged-"
	reportSuffix = ".json"
)

// OpenLedger opens the ledger in the store. From a damaged ledger it creates a new file with all
// intact records (journal.Salvage). It keeps the damaged file next to it, and returns a DamagedFile with a
// report of the damage and the lost pods. Later starts return both again until the ledger's first
// commit, because the first process may have ended before it acted on them. Otherwise that is
// nil. All other errors are those of journal.Open. A new ledger has the time as the base of its
// revisions, and its own epoch; so has a salvaged one.
func (s *Store) OpenLedger(ctx context.Context, o journal.Options, now time.Time) (*ledger.Ledger, journal.Report, *journal.DamagedFile,
	error) {
	o = s.options(o, now)
	l, report, cause := journal.Open(ctx, o)
	switch {
	case cause == nil:
		damage, err := s.uncommitted(l.View())
		if err != nil {
			return nil, report, nil, err
		}
		if damage != nil {
			recall(&report, damage.Report)
		}
		return l, report, damage, nil
	case errdefs.ClassOf(cause) != errdefs.Corrupt:
		return l, report, nil, cause
	}
	damage, err := s.salvage(o, now, cause)
	if err != nil {
		return nil, report, nil, err
	}
	l, report, err = journal.Open(ctx, o)
	recall(&report, damage.Report)
	return l, report, &damage, err
}

// OpenStrict opens the ledger in the store, but refuses a damaged one with an error of class
// Corrupt that lists what OpenLedger would keep. It writes nothing.
func (s *Store) OpenStrict(ctx context.Context, o journal.Options, now time.Time) (*ledger.Ledger, journal.Report, error) {
	o = s.options(o, now)
	l, report, cause := journal.Open(ctx, o)
	if errdefs.ClassOf(cause) != errdefs.Corrupt {
		return l, report, cause
	}
	found, err := salvageFile(s.path)
	if err != nil {
		return nil, report, err
	}
	saved, err := journal.Salvage(o, found)
	if err != nil {
		return nil, report, err
	}
	if report.Whole == saved.Report.Whole && len(report.Damage) > 0 {
		return nil, saved.Report, cause // it contains all of this
	}
	return nil, saved.Report, fmt.Errorf("%w; %s", cause, saved.Report.Outcome())
}

// options completes the options of a ledger in this store.
func (s *Store) options(o journal.Options, now time.Time) journal.Options {
	o.Journal, o.Epoch = s, uint64(max(0, now.UnixMilli()))
	if o.EpochID == 0 {
		o.EpochID = epoch.NewID()
	}
	return o
}

// recall copies the findings of the damaged file into the report of its replacement.
func recall(r *journal.Report, was journal.Report) {
	r.Damage, r.Renewed, r.Whole, r.Lost, r.Uncertain, r.Unread = was.Damage, was.Renewed, was.Whole, was.Lost, was.Uncertain, was.Unread
	r.History = cmp.Or(r.History, was.History)
}

// uncommitted returns the damage that a ledger was made of if it has had no commit since.
func (s *Store) uncommitted(v *ledger.View) (*journal.DamagedFile, error) {
	all, err := Damages(s.path)
	if err != nil {
		return nil, err
	}
	for _, d := range slices.Backward(all) {
		if d.EpochID != 0 && d.EpochID == v.EpochID() && d.Generation == v.Generation() {
			return &d, nil
		}
	}
	return nil, nil
}

// salvage creates a new file from the intact records of a damaged one, and replaces the damaged
// one. The damaged file gets another name, and a report next to it. The damaged file has its
// second name before the new file takes the first. A crash therefore leaves one of the two under
// the first name.
func (s *Store) salvage(o journal.Options, now time.Time, cause error) (journal.DamagedFile, error) {
	if s.opts.ReadOnly {
		return journal.DamagedFile{}, errdefs.Preconditionf("salvage %s: it is open for reading only: %w", s.path, cause)
	}
	found, err := salvageFile(s.path)
	if err != nil {
		return journal.DamagedFile{}, err
	}
	saved, err := journal.Salvage(o, found)
	if err != nil {
		return journal.DamagedFile{}, err
	}
	s.opts.Failpoint.Hit(BeforeSetAside)
	if s.db != nil {
		if err := s.db.Close(); err != nil {
			return journal.DamagedFile{}, unavailable("close", s.path, err)
		}
	}
	s.db, s.damage, s.broken, s.last = nil, nil, nil, 0
	if err := build(s.fresh(), saved.Entries); err != nil {
		return journal.DamagedFile{}, err
	}
	s.opts.Failpoint.Hit(AfterSalvage)
	aside, err := freeName(s.path, now)
	if err != nil {
		return journal.DamagedFile{}, err
	}
	d := journal.DamagedFile{
		Time: now.UTC(), File: s.path, SetAside: aside, Error: cause.Error(),
		Report: saved.Report, EpochID: o.EpochID, Generation: saved.Generation,
	}
	if err := writeReport(d); err != nil {
		return journal.DamagedFile{}, err
	}
	s.opts.Failpoint.Hit(AfterReport)
	if err := keepAs(s.path, d.SetAside); err != nil {
		return journal.DamagedFile{}, err
	}
	s.opts.Failpoint.Hit(AfterKeep)
	if err := os.Rename(s.fresh(), s.path); err != nil {
		return journal.DamagedFile{}, unavailable("replace damaged", s.path, err)
	}
	s.opts.Failpoint.Hit(AfterRename)
	if err := disk.Sync(filepath.Dir(s.path)); err != nil {
		return journal.DamagedFile{}, err
	}
	return d, s.open()
}

// fresh is the name of a file that is not whole yet.
func (s *Store) fresh() string { return s.path + ".new" }

// keepAs gives a file a second name, durably. Where the file system has no links it
// makes a copy.
func keepAs(path, name string) error {
	if was, err := os.Lstat(name); err == nil {
		if is, err := os.Lstat(path); err == nil && os.SameFile(was, is) {
			return nil // a crash came after the link
		}
	}
	if os.Link(path, name) != nil {
		if err := copyFile(path, name); err != nil {
			return err
		}
	}
	return disk.Sync(filepath.Dir(path))
}

// copyFile makes a copy that appears under its name when it is whole.
func copyFile(path, name string) error {
	data, err := readFile(path, ledgerfile.Largest)
	if err != nil {
		return err
	}
	part := name + ".part"
	if err := writeFile(part, data); err != nil {
		return err
	}
	if err := os.Rename(part, name); err != nil {
		return unavailable("name the copy", name, err)
	}
	return nil
}

// writeFile writes and syncs a file.
func writeFile(path string, data []byte) error {
	f, err := openRegular(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return opening("write", path, err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return unavailable("write", path, err)
	}
	return nil
}

// freeName returns a name for the damaged file that is not taken, or that a crash has
// left to it.
func freeName(path string, now time.Time) (string, error) {
	name := path + damagedInfix + now.UTC().Format("20060102T150405Z")
	is, _ := os.Lstat(path)
	for n := 1; ; n++ {
		candidate := name
		if n > 1 {
			candidate = fmt.Sprintf("%s-%d", name, n)
		}
		taken, err := os.Lstat(candidate)
		switch {
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return "", unavailable("find a name for damaged", path, err)
		case err == nil && !os.SameFile(taken, is):
			continue
		}
		if report, err := os.Lstat(candidate + reportSuffix); err == nil && !report.Mode().IsRegular() {
			continue
		}
		return candidate, nil
	}
}

func writeReport(d journal.DamagedFile) error {
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return errdefs.Internalf("report damage of %s: %w", d.File, err)
	}
	return writeFile(d.SetAside+reportSuffix, append(text, '\n'))
}

// Damages returns the reports on all files that were ever set aside for the file at path, oldest
// first. A crash can leave a report without a file, which is ignored. An unreadable report has
// the reason in Error.
func Damages(path string) ([]journal.DamagedFile, error) {
	dir, prefix := filepath.Dir(path), filepath.Base(path)+damagedInfix
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, unavailable("list", dir, err)
	}
	var all []journal.DamagedFile
	for _, entry := range names {
		name, isReport := strings.CutSuffix(entry.Name(), reportSuffix)
		if !isReport || !strings.HasPrefix(name, prefix) {
			continue
		}
		if _, err := os.Lstat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) {
			continue
		}
		var d journal.DamagedFile
		text, err := readFile(filepath.Join(dir, entry.Name()), ledgerfile.Largest)
		if err == nil {
			err = json.Unmarshal(text, &d)
		}
		if err != nil {
			d = journal.DamagedFile{
				File: path, SetAside: filepath.Join(dir, name), Error: fmt.Sprintf("the report cannot be read: %v", err),
			}
		}
		for _, lost := range d.Report.Lost {
			for id, b := range lost.Bindings {
				b.ID = id
				lost.Bindings[id] = b
			}
		}
		all = append(all, d)
	}
	slices.SortStableFunc(all, func(a, b journal.DamagedFile) int { return a.Time.Compare(b.Time) })
	return all, nil
}
