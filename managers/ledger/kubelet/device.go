package kubelet

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

// deviceFormat is the one format of kubelet_internal_checkpoint that there has
// been since Kubernetes 1.20. Format 1 had device ids in plain lists.
const deviceFormat = 2

// noNode is the node of devices whose plugin reported no NUMA node.
const noNode = -1

// DeviceState is the content of kubelet_internal_checkpoint.
type DeviceState struct {
	// Entries are what containers hold, in the order of the file.
	Entries []DeviceEntry
	// Registered are the healthy devices of each resource with a connected plugin, in the order
	// of the file.
	Registered map[string][]string
}

// DeviceEntry lists what a container holds of a resource.
type DeviceEntry struct {
	Pod       string `json:"PodUID"`
	Container string `json:"ContainerName"`
	Resource  string `json:"ResourceName"`
	// IDs by NUMA node; a device that is near to several is listed under each, one
	// without any under -1.
	IDs map[int64][]string `json:"DeviceIDs"`
	// Response is the plugin's ContainerAllocateResponse in wire form.
	Response []byte `json:"AllocResp"`
}

// deviceData is the part of the checkpoint under its checksum.
type deviceData struct {
	Entries    []DeviceEntry       `json:"PodDeviceEntries"`
	Registered map[string][]string `json:"RegisteredDevices"`
}

type deviceCheckpoint struct {
	Data     deviceData
	Checksum uint64
}

// ParseDevice reads kubelet_internal_checkpoint by itself. Errors are those of an import.
func ParseDevice(data []byte) (DeviceState, error) {
	s, err := parseDevice(data)
	if err != nil {
		return s, fmt.Errorf("read kubelet_internal_checkpoint: %w", err)
	}
	return s, nil
}

// parseDevice reads kubelet_internal_checkpoint. Errors are of class Invalid: no
// JSON object, a checksum that does not fit; and Unsupported for a file from
// before Kubernetes 1.20.
func parseDevice(data []byte) (DeviceState, error) {
	var c deviceCheckpoint
	if err := json.Unmarshal(data, &c); err != nil {
		if oldDevices(data) {
			return DeviceState{}, errdefs.Unsupportedf("the device ids are plain lists, as before Kubernetes 1.20")
		}
		var bad base64.CorruptInputError
		if errors.As(err, &bad) {
			return DeviceState{}, badResponse(data)
		}
		return DeviceState{}, misread(err)
	}
	if sum := checksum(c.Data.dump()); c.Checksum != sum {
		return DeviceState{}, wrongChecksum(c.Checksum, sum)
	}
	return DeviceState(c.Data), nil
}

// badResponse names the first entry whose response is not base64, the only field with that
// encoding.
func badResponse(data []byte) error {
	var c struct {
		Data struct {
			Entries []struct {
				DeviceEntry
				Response any `json:"AllocResp"`
			} `json:"PodDeviceEntries"`
		}
	}
	_ = json.Unmarshal(data, &c) // other errors come after this one
	for _, e := range c.Data.Entries {
		text, _ := e.Response.(string)
		if _, err := base64.StdEncoding.DecodeString(text); err != nil {
			return errdefs.Invalidf("Data.PodDeviceEntries.AllocResp of resource %q of container %q of pod %q: expected a text in base64: %w",
				e.Resource, e.Container, e.Pod, err)
		}
	}
	return errdefs.Invalidf("Data.PodDeviceEntries.AllocResp: expected a text in base64")
}

// oldDevices reports whether the file is one of format 1.
func oldDevices(data []byte) bool {
	var c struct {
		Data struct {
			Entries []struct {
				IDs []string `json:"DeviceIDs"`
			} `json:"PodDeviceEntries"`
		}
	}
	if json.Unmarshal(data, &c) != nil {
		return false
	}
	for _, e := range c.Data.Entries {
		if e.IDs != nil {
			return true
		}
	}
	return false
}

// dump is the text that the checksum is taken over.
func (d *deviceData) dump() string {
	ids := func(list []string) string { return dumpList(list, func(id string) string { return id }) }
	entry := func(e DeviceEntry) string {
		bytes := dumpList(e.Response, func(b byte) string { return strconv.Itoa(int(b)) })
		return "{PodUID:(string)" + e.Pod + " ContainerName:(string)" + e.Container + " ResourceName:(string)" + e.Resource +
			" DeviceIDs:(checkpoint.DevicesPerNUMA)" + dumpMap(e.IDs, ids) + " AllocResp:([]uint8)" + bytes + "}"
	}
	var b strings.Builder
	b.WriteString("(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)")
	b.WriteString(dumpList(d.Entries, entry))
	b.WriteString(" RegisteredDevices:(map[string][]string)")
	b.WriteString(dumpMap(d.Registered, ids))
	b.WriteByte('}')
	return b.String()
}

// Marshal writes the state as the kubelet does.
func (s *DeviceState) Marshal() ([]byte, error) {
	c := deviceCheckpoint{Data: deviceData(*s)}
	c.Checksum = checksum(c.Data.dump())
	return json.Marshal(c)
}
