package kubelet

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The names of the checkpoint's type that occur in dumps. The kubelet writes
// every format under the first; it also reads format 2 under the second.
const (
	currentType = "CPUManagerCheckpoint"
	secondType  = "CPUManagerCheckpointV2"
)

// checksum is the 32-bit FNV-1a hash of a dump.
func checksum(dump string) uint64 {
	h := fnv.New32a()
	h.Write([]byte(dump))
	return uint64(h.Sum32())
}

// dump prints the checkpoint with the given entries; podEntries is empty except
// in format 3.
func (c *cpuCheckpoint) dump(name, entries, podEntries string) string {
	return "(*state." + name + "){PolicyName:(string)" + c.Policy + " DefaultCPUSet:(string)" + c.Shared +
		" Entries:" + entries + podEntries + " Checksum:(checksum.Checksum)0}"
}

// dumpIDs is the dump in format 1.
func (c *cpuCheckpoint) dumpIDs(entries entriesByID) string {
	return c.dump(currentType, "(map[string]string)"+dumpMap(entries, func(list string) string { return list }), "")
}

// dumpPods is the dump in format 3. It has the CPUs of pods one by one, so a
// list that cannot be parsed is an error of class Invalid.
func (c *cpuCheckpoint) dumpPods(entries entriesByPod) (string, error) {
	sets := map[string]string{}
	for _, uid := range slices.Sorted(maps.Keys(c.PodEntries)) {
		set, err := parseList("pod "+strconv.Quote(uid), c.PodEntries[uid].CPUSet)
		if err != nil {
			return "", err
		}
		var b strings.Builder
		for cpu := range set.All() {
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(strconv.Itoa(cpu) + ":{}")
		}
		sets[uid] = "{CPUSet:(cpuset.CPUSet){elems:(map[int]struct {})map[" + b.String() + "]}}"
	}
	var pods map[string]string
	if c.PodEntries != nil {
		pods = sets
	}
	text := dumpMap(pods, func(s string) string { return s })
	return c.dump(currentType, dumpEntries(entries), " PodEntries:(state.PodCPUAssignments)"+text), nil
}

func dumpEntries(entries entriesByPod) string {
	return "(map[string]map[string]string)" + dumpMap(entries, func(containers map[string]string) string {
		return dumpMap(containers, func(list string) string { return list })
	})
}

// dumpList prints a slice; a nil one prints otherwise than an empty one.
func dumpList[V any](list []V, value func(V) string) string {
	if list == nil {
		return "<nil>"
	}
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i] = value(v)
	}
	return "[" + strings.Join(texts, " ") + "]"
}

// dumpMap prints a map in the order of its keys; a nil map prints otherwise than
// an empty one.
func dumpMap[M ~map[K]V, K cmp.Ordered, V any](m M, value func(V) string) string {
	if m == nil {
		return "<nil>"
	}
	var b strings.Builder
	b.WriteString("map[")
	for i, key := range slices.Sorted(maps.Keys(m)) {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%v:%s", key, value(m[key]))
	}
	b.WriteByte(']')
	return b.String()
}
