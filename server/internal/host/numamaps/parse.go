package numamaps

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
)

const (
	// maxWord is longer than each word that counts. Longer ones are paths.
	maxWord = 64
	// maxText bounds the text of a process. A million mappings have less, unless their files have very long paths.
	maxText = 256 << 20
	// maxNodes is the most NUMA nodes that a kernel is built for.
	maxNodes = 1024
)

// parse adds up the huge pages of a numa_maps, and returns how many bytes it has read. Each mapping is a line: its address, its
// policy, and words such as "huge", "N0=3" for three pages on node 0, and "kernelpagesize_kB=2048". Paths have neither blanks,
// line ends nor "=", because the kernel escapes these and no other characters. A path can be of any length, and most is how
// many bytes are read.
func parse(r io.Reader, most int) (out cgroup.HugeBytes, read int, err error) {
	out = cgroup.HugeBytes{}
	text := bufio.NewReaderSize(r, 64<<10)
	m := mapping{nodes: map[int]uint64{}}
	word := make([]byte, 0, maxWord)
	for ; read <= most; read++ {
		c, err := text.ReadByte()
		ended := errors.Is(err, io.EOF)
		if err != nil && !ended {
			return nil, read, err
		}
		if !ended && c != ' ' && c != '\n' {
			if len(word) < maxWord {
				word = append(word, c)
			}
			continue
		}
		if err := m.add(string(word)); err != nil {
			return nil, read, err
		}
		if word = word[:0]; !ended && c == ' ' {
			continue
		}
		if err := m.addTo(out); err != nil {
			return nil, read, err
		}
		if ended {
			return out, read, nil
		}
	}
	return nil, read, fmt.Errorf("numa_maps has more than %d bytes", most)
}

// mapping is a line, as far as it has been read.
type mapping struct {
	words int
	huge  bool
	size  uint64 // in KiB
	nodes map[int]uint64
}

// add reads a word, of which only the first maxWord bytes are known.
func (m *mapping) add(word string) error {
	const addressAndPolicy = 2
	if m.words++; m.words <= addressAndPolicy {
		return nil
	}
	key, value, valued := strings.Cut(word, "=")
	switch {
	case !valued:
		m.huge = m.huge || key == "huge"
	case key == "kernelpagesize_kB":
		m.size, _ = strconv.ParseUint(value, 10, 40)
	case strings.HasPrefix(key, "N"):
		id, err := strconv.Atoi(key[1:])
		pages, err2 := strconv.ParseUint(value, 10, 63)
		if err != nil || err2 != nil || id < 0 || id >= maxNodes {
			return fmt.Errorf("numa_maps: %q is no number of pages on a node", word)
		}
		m.nodes[id] = pages
	}
	return nil
}

// addTo adds the huge pages of a line, and begins the next one.
func (m *mapping) addTo(out cgroup.HugeBytes) error {
	defer func() {
		clear(m.nodes)
		*m = mapping{nodes: m.nodes}
	}()
	if !m.huge || len(m.nodes) == 0 {
		return nil
	}
	size := m.size << 10
	if size == 0 {
		return errors.New("numa_maps: huge pages without a size")
	}
	for id, pages := range m.nodes {
		hi, bytes := bits.Mul64(pages, size)
		if hi != 0 || bytes > 1<<62 {
			return fmt.Errorf("numa_maps: %d pages of %d bytes", pages, size)
		}
		out.Add(cgroup.HugeBytes{int64(size): {id: bytes}})
	}
	return nil
}
