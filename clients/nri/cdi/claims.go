package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// A CDI file of berth-dra is of one prepared claim. Its name has the claim's uid, and an annotation its allocation.
const (
	claimPrefix     = "dra.berthd.github.io-"
	claimSuffix     = ".json"
	claimAnnotation = "dra.berthd.github.io/allocation"
	// maxClaim bounds the bytes of a file, as berth-dra does.
	maxClaim = 256 << 10
)

// PreparedCPUs returns the CPUs of the claims that berth-dra has prepared, without those that known has by their uid. Files of
// other programs, and of known claims, are not opened. The error names the files that cannot be read; the CPUs of the other ones are
// valid.
func (r *Reader) PreparedCPUs(known func(uid string) bool) (cpus cpuset.Set, err error) {
	var errs []error
	for _, dir := range r.Directories {
		here, err := prepared(dir, known)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("CDI directory %s: %w", dir, err))
		}
		cpus = cpus.Union(here)
	}
	return cpus, errors.Join(errs...)
}

// prepared reads the claims of a directory.
func prepared(dir string, known func(uid string) bool) (cpus cpuset.Set, err error) {
	if err := trust.Check(dir); err != nil {
		return cpus, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return cpus, err
	}
	defer root.Close()
	list, err := root.Open(".")
	if err != nil {
		return cpus, err
	}
	defer list.Close()
	uids, err := claimsOf(list)
	errs := []error{err}
	rest := int64(maxBytes)
	for _, uid := range uids {
		if known(uid) {
			continue
		}
		name := claimPrefix + uid + claimSuffix
		has, err := claimCPUs(root, name, uid, &rest)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it was unprepared meanwhile
		case err != nil:
			errs = append(errs, fmt.Errorf("file %.128q: %w", name, err))
		}
		cpus = cpus.Union(has)
	}
	return cpus, errors.Join(errs...)
}

// claimsOf returns the uids of the claims that a directory has files of. Files of other programs do not count. With an error there are
// more of them.
func claimsOf(dir *os.File) (uids []string, err error) {
	for {
		names, err := dir.Readdirnames(1000)
		for _, name := range names {
			uid, ours := uidOf(name)
			if ours && len(uids) == maxFiles {
				return uids, errdefs.Preconditionf("there are files of more than %d claims: remove those of claims that do not exist any more", maxFiles)
			}
			if ours {
				uids = append(uids, uid)
			}
		}
		if errors.Is(err, io.EOF) {
			return uids, nil
		}
		if err != nil {
			return uids, err
		}
	}
}

// claimCPUs reads the CPUs of a claim.
func claimCPUs(root *os.Root, name, uid string, rest *int64) (cpus cpuset.Set, err error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return cpus, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return cpus, errors.Join(errdefs.Preconditionf("it is no regular file"), err)
	}
	limit := min(maxClaim, *rest)
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return cpus, err
	}
	if int64(len(text)) > limit {
		return cpus, errdefs.Preconditionf("it is larger than %d bytes, or all claims together are larger than %d", maxClaim, maxBytes)
	}
	*rest -= int64(len(text))
	return parseClaim(text, uid)
}

// parseClaim returns the CPUs of a claim from its CDI file.
func parseClaim(text []byte, uid string) (cpus cpuset.Set, err error) {
	var file struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return cpus, errdefs.Invalidf("not a CDI specification: %w", err)
	}
	var claim struct {
		UID   string `json:"uid"`
		Parts []struct {
			CPUs string `json:"cpus"`
		} `json:"parts"`
	}
	if err := json.Unmarshal([]byte(file.Annotations[claimAnnotation]), &claim); err != nil {
		return cpus, errdefs.Invalidf("annotation %s: expected the allocation of a claim as JSON: %w", claimAnnotation, err)
	}
	if claim.UID != uid {
		return cpus, errdefs.Invalidf("it is of claim %.80q", claim.UID)
	}
	for i, p := range claim.Parts {
		set, err := cpuset.Parse(p.CPUs)
		if err != nil || set.IsEmpty() {
			return cpuset.Set{}, errdefs.Invalidf("annotation %s: parts[%d].cpus is %.80q, expected a list of CPUs", claimAnnotation, i,
				p.CPUs)
		}
		cpus = cpus.Union(set)
	}
	return cpus, nil
}

// uidOf returns the claim's uid from the name of a file of berth-dra.
func uidOf(name string) (uid string, ours bool) {
	uid, ours = strings.CutPrefix(name, claimPrefix)
	uid, whole := strings.CutSuffix(uid, claimSuffix)
	return uid, ours && whole
}
