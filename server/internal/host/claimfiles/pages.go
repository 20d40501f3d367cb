package claimfiles

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"github.com/berthd/berth/managers/errdefs"
)

// pages are records in one file, one in each page. One system call writes or removes a record;
// with a file for each it would take three. The kernel copies a whole page, even if the process
// is killed meanwhile.
type pages struct {
	file *os.File
	// names has the record's name for each page, empty for a free page. at is the page of a name;
	// free are the free pages.
	names []string
	at    map[string]int
	free  []int
}

const (
	// pageSize is the size of a memory page, which is written at once.
	pageSize = 4096
	// The header of a page has the magic number and the lengths of name and record, which follow.
	// The rest of the page is from an earlier record.
	headerSize = 8
	magic      = 0x62657263
	// tooManyFree pages at the end of the file are given back to the system.
	tooManyFree = 64
)

// fits reports whether a record can be in a page.
func fits(name string, record []byte) bool { return headerSize+len(name)+len(record) <= pageSize }

// openPages reads which records a file has. A page that is none is free.
func openPages(file *os.File) (*pages, error) {
	p := &pages{file: file, at: map[string]int{}}
	page := make([]byte, pageSize)
	for number := 0; ; number++ {
		n, err := file.ReadAt(page, int64(number)*pageSize)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if n == 0 {
			return p, p.shrink(1)
		}
		name, _, ok := parsePage(page[:n])
		if _, twice := p.at[name]; !ok || twice {
			name = ""
		}
		p.names = append(p.names, name)
		if name == "" {
			p.free = append(p.free, number)
		} else {
			p.at[name] = number
		}
	}
}

// parsePage returns what a page has; false if that is no record.
func parsePage(page []byte) (name string, record []byte, ok bool) {
	if len(page) < headerSize || binary.LittleEndian.Uint32(page) != magic {
		return "", nil, false
	}
	n, r := int(binary.LittleEndian.Uint16(page[4:])), int(binary.LittleEndian.Uint16(page[6:]))
	if n == 0 || r == 0 || headerSize+n+r > len(page) {
		return "", nil, false
	}
	rest := page[headerSize:]
	return string(rest[:n]), rest[n : n+r], true
}

// read returns the record of a name; nil if it has none here.
func (p *pages) read(name string) ([]byte, error) {
	number, ok := p.at[name]
	if !ok {
		return nil, nil
	}
	page := make([]byte, pageSize)
	n, err := p.file.ReadAt(page, int64(number)*pageSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	found, record, ok := parsePage(page[:n])
	if !ok || found != name {
		return nil, errdefs.Corruptf("page %d of %s is of something else: berthd alone may write to it", number, p.file.Name())
	}
	return record, nil
}

// write puts a record that fits in the place of the one before.
func (p *pages) write(name string, record []byte) error {
	number, known := p.at[name]
	fresh := !known && len(p.free) == 0
	switch {
	case fresh:
		number = len(p.names)
	case !known:
		number = p.free[len(p.free)-1]
	}
	page := make([]byte, headerSize, headerSize+len(name)+len(record))
	binary.LittleEndian.PutUint32(page, magic)
	binary.LittleEndian.PutUint16(page[4:], uint16(len(name)))
	binary.LittleEndian.PutUint16(page[6:], uint16(len(record)))
	page = append(append(page, name...), record...)
	if _, err := p.file.WriteAt(page, int64(number)*pageSize); err != nil {
		return err
	}
	switch {
	case fresh:
		p.names = append(p.names, name)
	case !known:
		p.free = p.free[:len(p.free)-1]
		p.names[number] = name
	}
	p.at[name] = number
	return nil
}

// remove removes a record, if it is here.
func (p *pages) remove(name string) error {
	number, ok := p.at[name]
	if !ok {
		return nil
	}
	if _, err := p.file.WriteAt(make([]byte, headerSize), int64(number)*pageSize); err != nil {
		return err
	}
	delete(p.at, name)
	p.names[number], p.free = "", append(p.free, number)
	return p.shrink(tooManyFree)
}

// shrink gives the free pages at the end of the file back, if there are as many as most.
func (p *pages) shrink(most int) error {
	end := len(p.names)
	for end > 0 && p.names[end-1] == "" {
		end--
	}
	if len(p.names)-end < most {
		return nil
	}
	if err := p.file.Truncate(int64(end) * pageSize); err != nil {
		return err
	}
	p.names = p.names[:end]
	kept := p.free[:0]
	for _, number := range p.free {
		if number < end {
			kept = append(kept, number)
		}
	}
	p.free = kept
	return nil
}
