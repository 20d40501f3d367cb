package cpuset

import "encoding/binary"

// A tail is a string of little-endian words for the ids of headBits and more.
// Its last word is not zero. A string because Go compares and hashes strings by
// content, and a tail cannot be changed.

const (
	wordBytes = wordBits / 8
	tailWords = MaxCPUs/wordBits - headWords
	tailBytes = tailWords * wordBytes
)

// tailWord returns word i of a tail, zero beyond its end.
func tailWord(tail string, i int) uint64 {
	if i *= wordBytes; i < len(tail) {
		return binary.LittleEndian.Uint64([]byte(tail[i : i+wordBytes]))
	}
	return 0
}

// Most operations change nothing: the reserved CPUs are few and low, none is offline, what
// is removed was not there. Then a tail is returned as it is, without an allocation.

func unionTails(a, b string) string {
	switch {
	case withinTail(b, a):
		return a
	case withinTail(a, b):
		return b
	}
	var packed [tailBytes]byte
	n := max(len(a), len(b))
	for i := range n / wordBytes {
		putWord(packed[:], i, tailWord(a, i)|tailWord(b, i))
	}
	return string(packed[:n])
}

func intersectTails(a, b string) string {
	switch {
	case withinTail(a, b):
		return a
	case withinTail(b, a):
		return b
	}
	var packed [tailBytes]byte
	n := 0
	for i := range min(len(a), len(b)) / wordBytes {
		if w := tailWord(a, i) & tailWord(b, i); w != 0 {
			putWord(packed[:], i, w)
			n = (i + 1) * wordBytes
		}
	}
	return string(packed[:n])
}

func minusTails(a, b string) string {
	if !overlappingTails(a, b) {
		return a
	}
	var packed [tailBytes]byte
	n := 0
	for i := range len(a) / wordBytes {
		if w := tailWord(a, i) &^ tailWord(b, i); w != 0 {
			putWord(packed[:], i, w)
			n = (i + 1) * wordBytes
		}
	}
	return string(packed[:n])
}

// withinTail reports whether all ids of a are in b.
func withinTail(a, b string) bool {
	if len(a) > len(b) {
		return false // the last word of a is not zero
	}
	for i := range len(a) / wordBytes {
		if tailWord(a, i)&^tailWord(b, i) != 0 {
			return false
		}
	}
	return true
}

func overlappingTails(a, b string) bool {
	for i := range min(len(a), len(b)) / wordBytes {
		if tailWord(a, i)&tailWord(b, i) != 0 {
			return true
		}
	}
	return false
}

// packTail packs words without the zero words at their end.
func packTail(words []uint64) string {
	var packed [tailBytes]byte
	n := 0
	for i, w := range words {
		if w != 0 {
			putWord(packed[:], i, w)
			n = (i + 1) * wordBytes
		}
	}
	return string(packed[:n])
}

func putWord(packed []byte, i int, w uint64) {
	binary.LittleEndian.PutUint64(packed[i*wordBytes:], w)
}
