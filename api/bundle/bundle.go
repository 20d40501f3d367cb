package bundle

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/ledgerfile"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/numa"
)

// Format is the version of the format.
const Format = 1

// The parts.
const (
	AboutPart   = "about.json"
	MachinePart = "machine.json"
	ConfigPart  = "config.yaml"
	NodePart    = "node.json"
	DevicesPart = "devices.json"
	StatePart   = "state.json"
	HistoryPart = "history.jsonl"
	MetricsPart = "metrics.txt"
)

// part is a name with the most bytes.
type part struct {
	name string
	most int64
}

// parts are all parts in the order of an archive, with the most bytes that each may have.
var parts = []part{
	{AboutPart, 1 << 20}, {MachinePart, 16 << 20}, {ConfigPart, 1 << 20}, {NodePart, 1 << 16}, {DevicesPart, 64 << 20},
	{StatePart, 256 << 20}, {HistoryPart, 512 << 20}, {MetricsPart, 64 << 20},
}

// Parts returns the names of all parts, in the order of an archive.
func Parts() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// Bundle is a bundle in memory. Parts that are missing are nil.
type Bundle struct {
	About   About
	Machine *machine.Topology
	Config  *config.Config // of a read bundle: without its path of a machine
	Node    node.Facts     // without the machine
	Devices []Resource
	State   *history.Snapshot
	// History has the newest entry first.
	History []Line
	Metrics []byte
}

// About says what a bundle is.
type About struct {
	Format   int       `json:"format"`
	Time     time.Time `json:"time"`
	Berthctl string    `json:"berthctl,omitempty"`
	Berthd   string    `json:"berthd,omitempty"`
	Kernel   string    `json:"kernel,omitempty"`
	Masked   bool      `json:"masked,omitempty"`
	// Missing says of each missing part why it is missing.
	Missing []string `json:"missing,omitempty"`
}

// Facts are facts of the node as JSON.
type Facts struct {
	MaxPIDs      int64 `json:"max_pids,omitempty"`
	StorageBytes int64 `json:"storage_bytes,omitempty"`
}

// Resource is a device resource.
type Resource struct {
	Name string `json:"name"`
	// Connected is whether its plugin is there.
	Connected bool     `json:"connected"`
	Devices   []Device `json:"devices"`
}

// Device is a device as its plugin has listed it.
type Device struct {
	ID       string    `json:"id"`
	Healthy  bool      `json:"healthy"`
	Nodes    numa.Mask `json:"nodes,omitempty"`
	Topology bool      `json:"topology,omitempty"`
	// Alien is whether it is near to nodes that no machine has.
	Alien bool `json:"alien,omitempty"`
}

// Line is an entry of the history, or the damage of one.
type Line struct {
	Number uint64          `json:"number"`
	Entry  json.RawMessage `json:"entry,omitempty"`
	Damage string          `json:"damage,omitempty"`
}

// LineOf returns the line of an entry.
func LineOf(e *history.Entry, damage error) (Line, error) {
	if damage != nil {
		return Line{Number: e.Number, Damage: damage.Error()}, nil
	}
	text, err := history.Text(e)
	return Line{Number: e.Number, Entry: text}, err
}

// Resources returns the parts of an inventory that decisions depend on.
func Resources(s *device.Snapshot) []Resource {
	out := []Resource{}
	for r := range s.Resources() {
		resource := Resource{Name: r.Name, Connected: r.State == device.Connected, Devices: []Device{}}
		for _, d := range r.Devices {
			resource.Devices = append(resource.Devices, Device{d.ID, d.Healthy, d.Nodes, d.Topology, d.Alien})
		}
		out = append(out, resource)
	}
	return out
}

// DevicesByResource returns the devices of plugins that were there.
func (b *Bundle) DevicesByResource() map[string][]device.Device {
	out := map[string][]device.Device{}
	for _, r := range b.Devices {
		if !r.Connected {
			continue
		}
		for _, d := range r.Devices {
			out[r.Name] = append(out[r.Name], device.Device{ID: d.ID, Healthy: d.Healthy, Nodes: d.Nodes, Topology: d.Topology,
				Alien: d.Alien})
		}
	}
	return out
}

// EachEntry calls each with the entries, the newest first, and with the damage of those that
// cannot be read, until each returns false.
func (b *Bundle) EachEntry(each func(*history.Entry, error) bool) error {
	for _, l := range b.History {
		e, err := &history.Entry{Number: l.Number}, errors.New(l.Damage)
		if l.Damage == "" {
			e, err = history.ReadText(l.Number, l.Entry)
		}
		if !each(e, err) {
			return nil
		}
	}
	return nil
}

// FromLedger reads the state and the history of a ledger file, which berthd may have open. The
// machine is only used for a damaged file; without one such a file is an error of class Corrupt.
// damage is what was damaged. Errors are those of ledgerfile.Read and history.ReadSnapshot.
func FromLedger(ctx context.Context, path string, m *machine.Topology) (b *Bundle, damage, err error) {
	found, damage, err := ledgerfile.Read(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	b = &Bundle{}
	b.State, err = history.ReadSnapshot(found.Entries)
	if errdefs.ClassOf(err) == errdefs.Corrupt && m != nil {
		damage = err
		saved, failed := journal.Salvage(journal.Options{Rules: ledger.Rules{Machine: m}}, found)
		if failed != nil {
			return nil, damage, failed
		}
		found.Entries = saved.Entries
		b.State, err = history.ReadSnapshot(found.Entries)
	}
	if err != nil {
		return nil, damage, fmt.Errorf("%s: %w", path, err)
	}
	history.Each(found.Entries, func(e *history.Entry, bad error) {
		line, failed := LineOf(e, bad)
		err = cmp.Or(err, failed)
		b.History = append(b.History, line)
	})
	if err != nil {
		return nil, damage, err
	}
	return b, damage, nil
}

// Encode returns a part; nil if the bundle does not have it.
func (b *Bundle) Encode(part string) ([]byte, error) {
	switch part {
	case AboutPart:
		return indented(b.About)
	case MachinePart:
		if b.Machine != nil {
			return b.Machine.Marshal()
		}
	case ConfigPart:
		if b.Config != nil {
			return b.Config.Dump()
		}
	case NodePart:
		return indented(Facts{b.Node.MaxPIDs, b.Node.StorageBytes})
	case DevicesPart:
		if b.Devices != nil {
			return indented(b.Devices)
		}
	case StatePart:
		if b.State != nil {
			return indented(b.State)
		}
	case HistoryPart:
		var out bytes.Buffer
		lines := json.NewEncoder(&out)
		for _, l := range b.History {
			if err := lines.Encode(l); err != nil {
				return nil, err
			}
		}
		return out.Bytes(), nil
	case MetricsPart:
		return b.Metrics, nil
	}
	return nil, nil
}

func indented(v any) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", " ")
	return append(text, '\n'), err
}

// Decode reads a part into the bundle. Errors are of class Invalid and name the part.
func (b *Bundle) Decode(part string, data []byte) (err error) {
	switch part {
	case AboutPart, MachinePart, NodePart, DevicesPart, StatePart:
		err = checkValues(data, mostValues)
	}
	if err != nil {
		return errdefs.Invalidf("%s: %w", part, err)
	}
	switch part {
	case AboutPart:
		if err = strictly(data, &b.About); err == nil && b.About.Format != Format {
			err = fmt.Errorf("the format is %d, and this berthctl reads %d", b.About.Format, Format)
		}
	case MachinePart:
		b.Machine, err = machine.Load(data)
	case ConfigPart:
		c := config.Default()
		if err = c.ApplyBerth(part, data); err == nil {
			c.Machine = "" // a path of the machine that made the bundle: nothing may open it here
			b.Config = &c
		}
	case NodePart:
		var f Facts
		err = strictly(data, &f)
		b.Node = node.Facts{MaxPIDs: f.MaxPIDs, StorageBytes: f.StorageBytes}
	case DevicesPart:
		err = strictly(data, &b.Devices)
	case StatePart:
		b.State = &history.Snapshot{}
		err = strictly(data, b.State)
	case HistoryPart:
		err = b.readHistory(data)
	case MetricsPart:
		b.Metrics = data
	default:
		return errdefs.Invalidf("%.80q is no part of a bundle", part)
	}
	if err != nil {
		return errdefs.Invalidf("%s: %w", part, err)
	}
	return nil
}

// mostValues limits the values in a part, longestLine and lineValues a line of the history, and
// mostLines the lines. A node whose device plugins have 400,000 devices, all of which are allocated, has fewer values,
// and so has an entry of the ledger's history of any content. Without these limits a file
// of a few KB takes gigabytes of memory: an empty value of three bytes takes hundreds of them.
const (
	mostValues  = 1 << 22
	longestLine = 4 << 20
	lineValues  = 1 << 19
	mostLines   = config.MostHistoryEntries + 1024 // some wait for a commit
)

// checkValues refuses JSON with more values than a limit.
func checkValues(text []byte, most int) error {
	n, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '{' || c == '[' || c == ','):
			n++
		}
	}
	if n > most {
		return fmt.Errorf("it has more than %d values, which is the most", most)
	}
	return nil
}

// readHistory reads lines with descending numbers.
func (b *Bundle) readHistory(data []byte) error {
	for n := 1; len(data) > 0; n++ {
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		data = rest
		var l Line
		if len(line) > longestLine {
			return fmt.Errorf("line %d has %d bytes, and an entry has at most %d", n, len(line), longestLine)
		}
		if n > mostLines {
			return fmt.Errorf("there are more than %d lines, which is the most", mostLines)
		}
		if err := checkValues(line, lineValues); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if err := strictly(line, &l); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if last := len(b.History) - 1; last >= 0 && b.History[last].Number <= l.Number {
			return fmt.Errorf("line %d: entry %d follows entry %d, and the newest one must be the first", n, l.Number,
				b.History[last].Number)
		}
		b.History = append(b.History, l)
	}
	return nil
}

// strictly reads one JSON value without unknown fields.
func strictly(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("unexpected text after the value, at byte %d", d.InputOffset())
	}
	return nil
}
