package kubelet

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

// Claims is the kind of dra_manager_state. It is only read: berth's claims on dynamic resources are made by its own driver, so there is
// nothing to import.
const Claims Kind = "claims"

// claimVersion is the one version of the content of dra_manager_state that there has been since Kubernetes 1.32. Kubernetes 1.31 had the
// same entries, without an envelope.
const claimVersion = "checkpoint.dra.kubelet.k8s.io/v1"

// ClaimState is the content of dra_manager_state: the claims on dynamic resources (KEP-4381) that the kubelet has prepared or begins to
// prepare, in the order of the file.
type ClaimState struct {
	Claims []ClaimEntry
}

// ClaimEntry is a claim.
type ClaimEntry struct {
	UID, Namespace, Name string
	// Pods are the uids of the pods that use it, sorted.
	Pods []string
	// Devices by driver, in the order of the drivers' answers. There are none before the driver has answered.
	Devices []ClaimDevice
}

// ClaimDevice is a device of a claim.
type ClaimDevice struct {
	Driver, Pool, Device string
	// Share is the share of the device that the claim has; empty for the whole device.
	Share string
	// Requests are those of the claim for which the device is; none means all of them.
	Requests []string
	// CDI are the names of its CDI devices.
	CDI []string
}

// claimEnvelope is the file: Data since Kubernetes 1.32, Version and Entries in 1.31.
type claimEnvelope struct {
	Data     *string
	Version  string        `json:"version"`
	Entries  []claimRecord `json:"entries"`
	Checksum uint64
}

// claimData is the content of Data.
type claimData struct {
	APIVersion         string `json:"apiVersion"`
	ClaimInfoStateList []claimRecord
}

type claimRecord struct {
	ClaimUID    string
	ClaimName   string
	Namespace   string
	PodUIDs     map[string]struct{}
	DriverState map[string]claimDriver
	// DriverName was a key before Kubernetes 1.31.
	DriverName string
}

type claimDriver struct{ Devices []claimDevice }

type claimDevice struct {
	PoolName     string
	DeviceName   string
	ShareID      string
	RequestNames []string
	CDIDeviceIDs []string
}

// ParseClaims reads dra_manager_state. Errors are of class Invalid: no JSON object, a checksum that does not fit; and Unsupported for a
// file from before Kubernetes 1.31, or of a version that is not known.
func ParseClaims(data []byte) (ClaimState, error) {
	s, err := parseClaims(data)
	if err != nil {
		return ClaimState{}, fmt.Errorf("read dra_manager_state: %w", err)
	}
	return s, nil
}

func parseClaims(data []byte) (ClaimState, error) {
	var file claimEnvelope
	if err := json.Unmarshal(data, &file); err != nil {
		return ClaimState{}, misread(err)
	}
	if file.Data == nil {
		return file.bare()
	}
	if sum := uint64(crc32.ChecksumIEEE([]byte(*file.Data))); file.Checksum != sum {
		return ClaimState{}, wrongChecksum(file.Checksum, sum)
	}
	var content claimData
	if err := json.Unmarshal([]byte(*file.Data), &content); err != nil {
		return ClaimState{}, errdefs.Invalidf("Data: %w", misread(err))
	}
	if content.APIVersion != claimVersion {
		return ClaimState{}, errdefs.Unsupportedf("Data.apiVersion is %s, expected %s", Printable(content.APIVersion), claimVersion)
	}
	return claimState(content.ClaimInfoStateList), nil
}

// bare reads a file without an envelope.
func (f *claimEnvelope) bare() (ClaimState, error) {
	if f.Version != "v1" {
		return ClaimState{}, errdefs.Invalidf("expected Data, or version v1 as in Kubernetes 1.31")
	}
	if slices.ContainsFunc(f.Entries, func(c claimRecord) bool { return c.DriverName != "" && c.DriverState == nil }) {
		return ClaimState{}, errdefs.Unsupportedf("the claims have no devices, as before Kubernetes 1.31")
	}
	if len(f.Entries) == 0 {
		f.Entries = []claimRecord{} // the key is left out
	}
	if sum := checksum(dumpClaims(f.Entries)); f.Checksum != sum {
		return ClaimState{}, wrongChecksum(f.Checksum, sum)
	}
	return claimState(f.Entries), nil
}

// dumpClaims is the text that the checksum of Kubernetes 1.31 is taken over.
func dumpClaims(entries []claimRecord) string {
	texts := func(list []string) string {
		return "([]string)" + dumpList(list, func(text string) string { return text })
	}
	device := func(d claimDevice) string {
		return "{PoolName:(string)" + d.PoolName + " DeviceName:(string)" + d.DeviceName + " RequestNames:" + texts(d.RequestNames) +
			" CDIDeviceIDs:" + texts(d.CDIDeviceIDs) + "}"
	}
	driver := func(d claimDriver) string { return "{Devices:([]state.Device)" + dumpList(d.Devices, device) + "}" }
	entry := func(c claimRecord) string {
		return "{ClaimUID:(types.UID)" + c.ClaimUID + " ClaimName:(string)" + c.ClaimName + " Namespace:(string)" + c.Namespace +
			" PodUIDs:(sets.Set[string])" + dumpMap(c.PodUIDs, func(struct{}) string { return "{}" }) +
			" DriverState:(map[string]state.DriverState)" + dumpMap(c.DriverState, driver) + "}"
	}
	return "(*state.DRAManagerCheckpoint){Version:(string)v1 Entries:(state.ClaimInfoStateList)" + dumpList(entries, entry) +
		" Checksum:(checksum.Checksum)0}"
}

func claimState(entries []claimRecord) (s ClaimState) {
	for _, e := range entries {
		claim := ClaimEntry{UID: e.ClaimUID, Namespace: e.Namespace, Name: e.ClaimName, Pods: slices.Sorted(maps.Keys(e.PodUIDs))}
		for _, driver := range slices.Sorted(maps.Keys(e.DriverState)) {
			for _, d := range e.DriverState[driver].Devices {
				claim.Devices = append(claim.Devices, ClaimDevice{
					Driver: driver, Pool: d.PoolName, Device: d.DeviceName, Share: d.ShareID, Requests: d.RequestNames, CDI: d.CDIDeviceIDs,
				})
			}
		}
		s.Claims = append(s.Claims, claim)
	}
	return s
}

// IsFor reports whether the device is for a request of its claim; an empty one means all of them. A driver may name an alternative of a
// request, REQUEST/ALTERNATIVE.
func (d ClaimDevice) IsFor(request string) bool {
	return request == "" || len(d.Requests) == 0 || slices.ContainsFunc(d.Requests, func(name string) bool {
		name, _, _ = strings.Cut(name, "/")
		return name == request
	})
}

// String is the name of the device for messages: DRIVER/POOL/DEVICE, and the share.
func (d ClaimDevice) String() string {
	name := Printable(d.Driver) + "/" + Printable(d.Pool) + "/" + Printable(d.Device)
	if d.Share != "" {
		name += "/" + Printable(d.Share)
	}
	return name
}

// String is the claim for messages, with its devices.
func (c ClaimEntry) String() string {
	text := Printable(c.Namespace) + "/" + Printable(c.Name)
	if len(c.Devices) == 0 {
		return text + " (no device yet)"
	}
	var names []string
	for _, d := range c.Devices {
		names = append(names, d.String())
	}
	return text + " (" + first(names) + ")"
}
