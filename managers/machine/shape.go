package machine

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// Defaults of a made-up machine, and the distances that its nodes get.
const (
	shapeMemoryBytes = 64 << 30
	distanceLocal    = 10
	distanceNear     = 12 // another node of the same socket
	distanceFar      = 20
)

// shape is a parsed shape text.
type shape struct {
	sockets, nodes, caches, cores, threads int
	// socketsInNodes is true if n stood before s.
	socketsInNodes bool
	memoryOnly     int
	adjacent       bool
	memoryBytes    uint64
	hugePages      []HugePages
}

// ParseShape describes a made-up machine in a few characters: how many of each
// thing there are in the one before it, from the outside in.
//
//	2s4n32c2t         2 sockets of 4 nodes of 32 cores of 2 threads: 8 nodes, 512 CPUs
//	8c                one socket, one node, 8 cores of one thread
//	2s2n4l8c2t        with 4 L3 groups of 8 cores in each node
//	1n2s16c2t         one node that spans 2 sockets
//	2s1n72c32m        2 nodes of 72 cores, and 32 nodes with memory only
//	2s2n16c2t,adjacent,mem=32Gi,huge=2Mi:512,huge=1Gi:4
//
// The letters are s (sockets), n (NUMA nodes), l (L3 groups), c (cores) and t
// (threads); each at most once, in this order except that n may stand before s;
// c is needed, the others count 1. One L3 group is the cache of the whole node,
// so that the socket's id replaces it, as on a real machine. At the end, m
// is the number of memory-only nodes of the whole machine.
//
// Options follow after commas: adjacent numbers the threads of a core one after
// the other (0 and 1) and not one round after the other (0 and 64); mem is the
// memory of every node (64Gi), huge adds pages of a size to every node that has
// CPUs. Sizes take Ki, Mi, Gi and Ti. Distances are 10 to the node itself, 12
// inside a socket, 20 elsewhere.
//
// Errors are of class Invalid and name the part that is wrong.
func ParseShape(text string) (Snapshot, error) {
	sh := shape{sockets: 1, nodes: 1, caches: 1, threads: 1, memoryBytes: shapeMemoryBytes}
	levels, options, _ := strings.Cut(text, ",")
	if err := sh.parseLevels(levels); err != nil {
		return Snapshot{}, errdefs.Invalidf("shape %q: %w", text, err)
	}
	if levels != text {
		for option := range strings.SplitSeq(options, ",") {
			if err := sh.parseOption(option); err != nil {
				return Snapshot{}, errdefs.Invalidf("shape %q: %w", text, err)
			}
		}
	}
	if err := sh.checkSize(); err != nil {
		return Snapshot{}, errdefs.Invalidf("shape %q: %w", text, err)
	}
	return sh.snapshot(text), nil
}

// letterRank is the order of the letters; s and n share a rank.
var letterRank = map[byte]int{'s': 1, 'n': 1, 'l': 2, 'c': 3, 't': 4, 'm': 5}

func (sh *shape) parseLevels(text string) error {
	seen := ""
	rank := 0
	for rest := text; rest != ""; {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		if digits == 0 || digits == len(rest) {
			return fmt.Errorf("%q is not a number and a letter", rest)
		}
		letter := rest[digits]
		count, err := strconv.Atoi(rest[:digits])
		if err != nil || count < 1 || count > cpuset.MaxCPUs {
			return fmt.Errorf("%s%c: the number is outside 1..%d", rest[:digits], letter, cpuset.MaxCPUs)
		}
		switch r := letterRank[letter]; {
		case r == 0:
			return fmt.Errorf("%q is not one of the letters s, n, l, c, t, m", rest[digits:digits+1])
		case strings.IndexByte(seen, letter) >= 0:
			return fmt.Errorf("the letter %c stands twice", letter)
		case r < rank:
			return fmt.Errorf("the letter %c stands after %c, expected the order s n l c t m", letter, seen[len(seen)-1])
		default:
			rank = r
		}
		if letter == 's' && seen == "n" {
			sh.socketsInNodes = true
		}
		seen += string(letter)
		sh.set(letter, count)
		rest = rest[digits+1:]
	}
	if sh.cores == 0 {
		return fmt.Errorf("the number of cores is missing, as in 2s4n32c2t")
	}
	return nil
}

func (sh *shape) set(letter byte, count int) {
	switch letter {
	case 's':
		sh.sockets = count
	case 'n':
		sh.nodes = count
	case 'l':
		sh.caches = count
	case 'c':
		sh.cores = count
	case 't':
		sh.threads = count
	case 'm':
		sh.memoryOnly = count
	}
}

func (sh *shape) parseOption(option string) error {
	name, value, _ := strings.Cut(option, "=")
	switch {
	case option == "adjacent":
		sh.adjacent = true
		return nil
	case name == "mem":
		size, err := parseSize(value)
		sh.memoryBytes = size
		return err
	case name == "huge":
		size, pages, found := strings.Cut(value, ":")
		if !found {
			return fmt.Errorf("option %q is not huge=SIZE:COUNT", option)
		}
		bytes, err := parseSize(size)
		if err != nil {
			return err
		}
		count, err := strconv.ParseUint(pages, 10, 32)
		if err != nil || bytes == 0 || bytes%1024 != 0 {
			return fmt.Errorf("option %q is not huge=SIZE:COUNT with a size in whole KiB and a count of up to 32 bits", option)
		}
		sh.hugePages = append(sh.hugePages, HugePages{SizeKiB: bytes / 1024, Count: count})
		return nil
	}
	return fmt.Errorf("option %q is not one of adjacent, mem=SIZE, huge=SIZE:COUNT", option)
}

// parseSize reads a number of bytes, with a binary suffix or without.
func parseSize(text string) (uint64, error) {
	number, shift := text, 0
	for i, suffix := range []string{"Ki", "Mi", "Gi", "Ti"} {
		if digits, found := strings.CutSuffix(text, suffix); found {
			number, shift = digits, 10*(i+1)
		}
	}
	// 2^52 bytes on each of 64 nodes still add up in 64 bits.
	const limit = 1 << 52
	size, err := strconv.ParseUint(number, 10, 64)
	if err != nil || size > limit>>shift {
		return 0, fmt.Errorf("size %q is not a number of bytes of up to %dTi, with Ki, Mi, Gi, Ti or nothing behind it", text, limit>>40)
	}
	return size << shift, nil
}

func (sh *shape) checkSize() error {
	total := 1
	for _, n := range []int{sh.sockets, sh.nodes, sh.caches, sh.cores, sh.threads} {
		// No factor exceeds MaxCPUs, so that stopping here keeps the product small.
		if total *= n; total > cpuset.MaxCPUs {
			return fmt.Errorf("the machine has more than %d CPUs; every number multiplies those before it", cpuset.MaxCPUs)
		}
	}
	if nodes := sh.totalNodes() + sh.memoryOnly; nodes > numa.MaxNodes {
		return fmt.Errorf("the machine has %d NUMA nodes, more than %d", nodes, numa.MaxNodes)
	}
	var huge uint64
	for i, pages := range sh.hugePages {
		if pages.Count > math.MaxUint64/1024/pages.SizeKiB {
			return fmt.Errorf("%d pages of %d KiB exceed %d bytes", pages.Count, pages.SizeKiB, uint64(math.MaxUint64))
		}
		for _, other := range sh.hugePages[:i] {
			if other.SizeKiB == pages.SizeKiB {
				return fmt.Errorf("pages of %d KiB are given twice", pages.SizeKiB)
			}
		}
		if huge += pages.SizeKiB * 1024 * pages.Count; huge > sh.memoryBytes {
			return fmt.Errorf("the huge pages of a node need more than its %d bytes", sh.memoryBytes)
		}
	}
	return nil
}

func (sh *shape) totalNodes() int {
	if sh.socketsInNodes {
		return sh.nodes
	}
	return sh.sockets * sh.nodes
}

func (sh *shape) totalCores() int { return sh.sockets * sh.nodes * sh.caches * sh.cores }
