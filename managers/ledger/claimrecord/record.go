package claimrecord

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/workload"
)

const (
	// MaxBytes is the maximum size of an encoded claim record. An extended
	// attribute takes 64 KiB, all attributes of a cgroup together about 128 KiB.
	MaxBytes = 48 << 10
	// format is the format that is written. Other formats are refused.
	format = 1
	// bucket is used as the bucket in the checksum of a claim record.
	bucket = "claim-record"
)

// Record has the claims of a pod. It is stored with the pod's cgroup and removed with
// it, so it survives the loss of the ledger. It is written before the commit of the change
// that it contains.
//
// A claim record is compared with the pod's ledger record only within one epoch. If
// Generation is above Pod.ChangedGeneration, the change was not committed, or the ledger is
// an older copy.
type Record struct {
	// Pod is the uid.
	Pod       string
	Namespace string
	Name      string
	// BootID is the kernel's id of the boot in which the record was written. The record of
	// another boot is no evidence for a running pod.
	BootID string
	// Epoch and Generation are those of the commit for which the record was written.
	Epoch      ledger.EpochID
	Generation uint64
	// Digest of the pod's specification, and its class.
	Digest string
	QoS    workload.QoSClass
	// OwnedBy is the agent that the pod belongs to; empty for DefaultOwner.
	OwnedBy string
	// ResourceClaim is present in the record of a resource claim, without its pods.
	ResourceClaim *workload.ResourceClaim
	// Claims in the order of records, with digests instead of plugins' answers.
	Claims []ledger.Claim
	// Unlisted are claims whose devices, or opaque bytes, do not fit into a record. It is set only in a
	// record that was read.
	Unlisted []Unlisted
	// Bindings has the newest container id of each container, by container.
	Bindings []ledger.RecordedBinding
}

// Unlisted is a claim of which a record has a digest only.
type Unlisted struct {
	// Claim is without a payload.
	Claim  ledger.Claim
	Digest string
}

// Completed returns the claims of a record with the unlisted ones, taken from known claims with the same
// content. It returns false if there are others.
func (r *Record) Completed(known []ledger.Claim) (claims []ledger.Claim, whole bool) {
	if len(r.Unlisted) == 0 {
		return r.Claims, true
	}
	claims, whole = slices.Clone(r.Claims), true
	for _, u := range r.Unlisted {
		i := slices.IndexFunc(known, func(k ledger.Claim) bool { return ledger.CompareClaims(k, u.Claim) == 0 && DigestOf(k) == u.Digest })
		if i < 0 {
			whole = false
			continue
		}
		claims = append(claims, known[i])
	}
	ledger.SortClaims(claims)
	return claims, whole
}

// storedRecord is the JSON shape of a claim record.
type storedRecord struct {
	Format     int             `json:"format"`
	Pod        string          `json:"pod"`
	Namespace  string          `json:"namespace"`
	Name       string          `json:"name"`
	BootID     string          `json:"boot_id"`
	Epoch      ledger.EpochID  `json:"epoch"`
	Generation uint64          `json:"generation"`
	Digest     string          `json:"digest"`
	QoS        string          `json:"qos"`
	OwnedBy    string          `json:"owned_by,omitempty"`
	Claims     []recordedClaim `json:"claims"`
	// ResourceClaim is as in workload.Pod.
	ResourceClaim *workload.ResourceClaim  `json:"resource_claim,omitempty"`
	Bindings      []ledger.RecordedBinding `json:"bindings,omitempty"`
}

// recordedClaim is a claim without the pod's uid.
type recordedClaim struct {
	Container string           `json:"container,omitempty"`
	Provider  string           `json:"provider"`
	Resource  string           `json:"resource"`
	Affinity  *ledger.Affinity `json:"affinity,omitempty"`
	CPUs      *ledger.CPUs     `json:"cpus,omitempty"`
	Memory    []ledger.Block   `json:"memory,omitempty"`
	Opaque    []byte           `json:"opaque,omitempty"`

	Devices *recordedDevices `json:"devices,omitempty"`
	// Digest of the devices or the opaque bytes, which are not in the record then.
	Digest string `json:"digest,omitempty"`
}

// New returns the claim record of a pod of the view, for a generation.
func New(v *ledger.View, p *ledger.Pod, generation uint64) Record {
	r := Record{
		Pod: p.UID(), Namespace: p.Pod.Namespace, Name: p.Pod.Name,
		BootID: v.BootID(), Epoch: v.EpochID(), Generation: generation,
		Digest: p.Digest, QoS: p.QoS, OwnedBy: p.OwnedBy, Claims: p.Claims,
	}
	if claim := p.Pod.ResourceClaim; claim != nil {
		r.ResourceClaim = claim.For(nil) // the pods may need more than MaxBytes
	}
	for b := range v.BindingsOf(p.UID()) { // by container, older before newer
		if last := len(r.Bindings) - 1; last >= 0 && r.Bindings[last].Container == b.Owner.Container {
			r.Bindings = r.Bindings[:last]
		}
		r.Bindings = append(r.Bindings, ledger.RecordedBinding{
			ID: b.ID, Container: b.Owner.Container, CgroupPath: b.CgroupPath, Own: b.Own,
		})
	}
	return r
}

// Encode returns the record with its checksum. A record above MaxBytes is an error
// of class Invalid that names both sizes. Equal records give equal bytes.
func (r *Record) Encode() ([]byte, error) {
	stored := storedRecord{
		Format: format, Pod: r.Pod, Namespace: r.Namespace, Name: r.Name, BootID: r.BootID, Epoch: r.Epoch,
		Generation: r.Generation, Digest: r.Digest, QoS: string(r.QoS), OwnedBy: r.OwnedBy, Bindings: r.Bindings,
		ResourceClaim: r.ResourceClaim,
		Claims:        make([]recordedClaim, len(r.Claims)),
	}
	for i := range r.Claims {
		c := &r.Claims[i]
		stored.Claims[i] = recordedClaim{
			Container: c.Owner.Container, Provider: c.Provider, Resource: c.Resource, Affinity: c.Affinity,
			CPUs: c.CPUs, Memory: c.Memory, Opaque: c.Opaque, Devices: recordOf(c.Devices),
		}
	}
	out, err := stored.fitted(r.Claims)
	if err != nil {
		return nil, errdefs.Internalf("encode the claim record of pod %s: %w", r.Pod, err)
	}
	if len(out) > MaxBytes {
		return nil, errdefs.Invalidf("the claim record of pod %s would have %d bytes, and may have %d: "+
			"the pod has too many containers with CPUs, memory or devices of their own", r.Pod, len(out), MaxBytes)
	}
	return out, nil
}

// fitted returns the stored record. If it is too large, the largest claims have a digest in place of their
// devices or bytes, one after the other.
func (s *storedRecord) fitted(claims []ledger.Claim) ([]byte, error) {
	var largest []int // the claims that may have a digest, the smallest first
	var sizes []int
	for {
		e, err := journal.Seal(bucket, s.Pod, s)
		if err != nil || len(e.Value) <= MaxBytes {
			return e.Value, err
		}
		if sizes == nil {
			sizes = make([]int, len(claims))
			for i := range claims {
				if DigestOf(claims[i]) == "" {
					continue
				}
				text, err := json.Marshal(&s.Claims[i])
				if err != nil {
					return nil, err
				}
				sizes[i], largest = len(text), append(largest, i)
			}
			slices.SortStableFunc(largest, func(a, b int) int { return cmp.Compare(sizes[a], sizes[b]) })
		}
		if len(largest) == 0 {
			return e.Value, nil
		}
		for over := len(e.Value) - MaxBytes; over > 0 && len(largest) > 0; {
			i := largest[len(largest)-1]
			largest = largest[:len(largest)-1]
			c := &s.Claims[i]
			c.Devices, c.Opaque, c.Digest = nil, nil, DigestOf(claims[i])
			over -= sizes[i]
		}
	}
}

// answerDigest returns the digest of a plugin's answer.
func answerDigest(response []byte) string {
	sum := sha256.Sum256(response)
	return hex.EncodeToString(sum[:])
}

// Decode decodes the claim record of a pod. A record that is too large, damaged,
// contradictory, or of another pod or format is an error of class Corrupt; then nothing in
// it is used.
func Decode(uid string, data []byte) (*Record, error) {
	r, err := decode(uid, data)
	if err != nil {
		return nil, errdefs.Corruptf("the claim record of pod %s: %w", uid, err)
	}
	return r, nil
}

func decode(uid string, data []byte) (*Record, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("it has %d bytes, and may have %d", len(data), MaxBytes)
	}
	text, err := journal.Unseal(journal.Entry{Bucket: bucket, Key: uid, Value: data})
	if err != nil {
		return nil, err
	}
	var stored storedRecord
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&stored); err != nil {
		return nil, err
	}
	switch {
	case stored.Format != format:
		return nil, fmt.Errorf("it has format %d, this berth reads format %d", stored.Format, format)
	case stored.Pod != uid:
		return nil, fmt.Errorf("the value belongs under %q", stored.Pod)
	case stored.Digest == "":
		return nil, fmt.Errorf("it has no digest of the pod's specification")
	}
	r := &Record{
		Pod: stored.Pod, Namespace: stored.Namespace, Name: stored.Name,
		BootID: stored.BootID, Epoch: stored.Epoch, Generation: stored.Generation,
		Digest: stored.Digest, QoS: workload.QoSClass(stored.QoS), OwnedBy: stored.OwnedBy, Bindings: stored.Bindings,
		ResourceClaim: stored.ResourceClaim,
	}
	if !slices.Contains([]workload.QoSClass{workload.BestEffort, workload.Burstable, workload.Guaranteed}, r.QoS) {
		return nil, fmt.Errorf("%q is no QoS class", stored.QoS)
	}
	left := mostRecordedDevices
	for _, c := range stored.Claims {
		claim := ledger.Claim{
			Owner: ledger.Owner{Pod: uid, Container: c.Container}, Provider: c.Provider, Resource: c.Resource,
			Affinity: c.Affinity, CPUs: c.CPUs, Memory: c.Memory, Opaque: c.Opaque,
		}
		var err error
		if claim.Devices, err = c.Devices.devices(&left); err != nil {
			return nil, err
		}
		switch {
		case c.Digest == "":
			r.Claims = append(r.Claims, claim)
		case claim.Payloads() > 0:
			return nil, fmt.Errorf("the claim of %s on %s has a digest and a payload", claim.Owner, claim.Resource)
		default:
			r.Unlisted = append(r.Unlisted, Unlisted{claim, c.Digest})
		}
	}
	return r, r.check()
}

var uses = []ledger.CPUUse{ledger.CPUExclusive, ledger.CPUPod, ledger.CPUPodExclusive, ledger.CPUPodShared}

// check finds contents that berth never writes.
func (r *Record) check() error {
	for i := range r.Claims {
		c := &r.Claims[i]
		if c.Payloads() != 1 {
			return fmt.Errorf("the claim of %s on %s has %d payloads, not one", c.Owner, c.Resource, c.Payloads())
		}
		if i > 0 && ledger.CompareClaims(r.Claims[i-1], *c) >= 0 {
			return fmt.Errorf("the claim of %s on %s is listed twice, or out of order", c.Owner, c.Resource)
		}
		switch {
		case c.CPUs != nil && (c.CPUs.Set.IsEmpty() || !slices.Contains(uses, c.CPUs.Use)):
			return fmt.Errorf("%s cannot hold CPUs %q for use %q", c.Owner, c.CPUs.Set, c.CPUs.Use)
		case c.Devices != nil && !c.Devices.InOrder():
			return fmt.Errorf("the claim of %s on %s names no devices, or not in strict order of their ids", c.Owner, c.Resource)
		}
		for _, b := range c.Memory {
			if b.Nodes.IsEmpty() || !b.Whole() {
				return fmt.Errorf("%d bytes of %s are on no NUMA node, or are not the sum of their parts", b.Bytes, c.Owner)
			}
		}
	}
	for i, b := range r.Bindings {
		if b.ID == "" || b.Container == "" || i > 0 && cmp.Compare(r.Bindings[i-1].Container, b.Container) >= 0 {
			return fmt.Errorf("a container's id is missing, or the containers are out of order")
		}
	}
	return nil
}
