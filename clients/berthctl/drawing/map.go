package drawing

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/clients/berthctl/nodemap"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/numa"
)

const mapLong = `Draw the machine with the pods on it: sockets, NUMA nodes with their distances, shared caches, cores with their threads,
memory and huge pages of each node, and devices next to the nearest NUMA node.

Each pod has a letter, the largest pod A; the legend below the map names the pods. Without --detail the map shows as much
as fits into --lines lines: every thread, one sign for each core, one bar for the CPUs of each node, or one line for each
node. Memory that a pod holds on several NUMA nodes may lie anywhere on them; the map spreads it over them.

-o json prints the same as data.`

const mapExample = `  berthctl map
  berthctl map --node 0,2 --detail threads
  berthctl map --pod default/web
  berthctl map --changes 10m
  berthctl map --bundle incident.tar.gz --at 2026-11-20T03:00:00Z`

// Flags are the flags for drawing a map.
type Flags struct {
	// Draw is --map of a verb that draws a map with its answer.
	Draw         bool
	width, lines int
	detail       string
	ascii        bool
}

var details = map[string]nodemap.Detail{
	"auto": nodemap.DetailAuto, "threads": nodemap.DetailThreads, "cores": nodemap.DetailCores,
	"caches": nodemap.DetailCaches, "nodes": nodemap.DetailNodes,
}

func detailNames() []string { return []string{"auto", "threads", "cores", "caches", "nodes"} }

// Declare adds the flags to a verb; with a text also --map.
func (f *Flags) Declare(cmd *cobra.Command, draw string) {
	fs := cmd.Flags()
	if draw != "" {
		fs.BoolVar(&f.Draw, "map", false, draw)
	}
	fs.IntVar(&f.width, "width", 0, "width in columns; 0 is the terminal's width, or 100 without a terminal")
	fs.IntVar(&f.lines, "lines", 60, "lines that the map may have with --detail auto; 0 is no limit")
	fs.StringVar(&f.detail, "detail", "auto", "auto, threads, cores, caches or nodes")
	fs.BoolVar(&f.ascii, "ascii", false, "draw with ASCII characters only (default where the locale is not UTF-8)")
	command.Choices(cmd, "detail", detailNames()...)
}

// Options turns the flags into options for the output.
func (f *Flags) Options(c *command.Ctl) (nodemap.Options, error) {
	detail, ok := details[f.detail]
	if !ok {
		return nodemap.Options{}, fmt.Errorf("--detail %s: expected one of %s", f.detail, strings.Join(detailNames(), ", "))
	}
	if f.width < 0 || f.lines < 0 {
		return nodemap.Options{}, fmt.Errorf("--width and --lines: expected 0 or more")
	}
	o := nodemap.Options{Width: f.width, Lines: f.lines, Detail: detail, ASCII: f.ascii || !utf8Locale(c.Getenv), Color: c.Colored()}
	if o.Width == 0 {
		if o.Width = command.TerminalWidth(c.Out); o.Width == 0 {
			o.Width = 100
		}
	}
	return o, nil
}

// utf8Locale reports whether the environment selects UTF-8; an empty environment does.
func utf8Locale(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := getenv(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return true
}

// mapSelection is what a map is about.
type mapSelection struct {
	nodes   string
	pod     string
	changes string
	bundle  string
}

func (s *mapSelection) declare(fs *pflag.FlagSet) {
	fs.StringVar(&s.nodes, "node", "", "NUMA nodes to draw, as 3 or 0-1,4 (default all)")
	fs.StringVar(&s.pod, "pod", "", "pod to highlight; all others get one sign")
	fs.StringVar(&s.bundle, "bundle", "", "draw the state in a file of 'berthctl bundle'")
	fs.StringVar(&s.changes, "changes", "",
		"mark the pods that were admitted since then: an age such as 10m, or a time such as 2026-11-20T12:00:00Z")
}

func Map(c *command.Ctl) *cobra.Command {
	var (
		f   Flags
		sel mapSelection
	)
	cmd := c.Local(command.About{
		Use:   "map [--node N] [--pod POD] [--bundle FILE]",
		Short: "Draw the machine with the pods on it",
		Long:  mapLong, Example: mapExample,
	}, func(ctx context.Context, _ []string) error {
		o, err := f.Options(c)
		if err != nil {
			return command.Usagef("map", "%v", err)
		}
		if sel.bundle != "" {
			return mapBundle(c, sel, o)
		}
		return c.Connected(ctx, func(ctx context.Context, s *command.Session) error { return mapNow(ctx, s, sel, o) })
	})
	sel.declare(cmd.Flags())
	f.Declare(cmd, "")
	return c.OfPast(cmd)
}

// mapNow draws the machine of berthd.
func mapNow(ctx context.Context, s *command.Session, sel mapSelection, o nodemap.Options) error {
	since, err := s.TimeOf("--changes", sel.changes)
	if err != nil {
		return command.Usagef("map", "%v", err)
	}
	state, err := MapState(ctx, s, since)
	if err != nil {
		return err
	}
	if o.Nodes, err = mapNodes(sel.nodes, state); err != nil {
		return err
	}
	if sel.pod != "" {
		pod, err := s.Find(ctx, sel.pod)
		if err != nil {
			return err
		}
		o.Pod = pod.GetUid()
	}
	return ShowMap(s.Ctl, state, o)
}

// mapBundle draws the machine of a bundle, now or at a moment.
func mapBundle(c *command.Ctl, sel mapSelection, o nodemap.Options) error {
	b, err := bundle.ReadFile(sel.bundle)
	if err != nil {
		return err
	}
	if b.Machine == nil || b.Config == nil {
		return fmt.Errorf("%s has no machine or no configuration: make a bundle with --machine and --config", sel.bundle)
	}
	since, err := c.TimeOf("--changes", sel.changes)
	if err != nil {
		return command.Usagef("map", "%v", err)
	}
	rec, err := simulation.RecordOf(b, b.Machine)
	if err != nil {
		return err
	}
	scene := simulation.Scene{Machine: b.Machine, Config: *b.Config, Devices: b.DevicesByResource(), Facts: b.Node}
	view := rec.View
	if c.Past != nil {
		moment := history.Moment{Time: c.Past.GetTime().AsTime(), Revision: c.Past.GetRevision()}
		if view, err = history.At(view, moment, rec.History); err != nil {
			return err
		}
	}
	placed, err := scene.State(rec, view)
	if err != nil {
		return err
	}
	state := SimulatedState(scene, placed)
	state.Revision = view.Revision()
	i := 0
	for p := range view.Pods() {
		state.Pods[i].New = !since.IsZero() && !p.AdmittedAt.Before(since)
		i++
	}
	if o.Nodes, err = mapNodes(sel.nodes, state); err != nil {
		return err
	}
	if sel.pod != "" {
		at := slices.IndexFunc(state.Pods, func(p nodemap.Pod) bool {
			_, name, _ := strings.Cut(p.Name, "/")
			return sel.pod == p.UID || sel.pod == p.Name || sel.pod == name
		})
		if at < 0 {
			names := make([]string, 0, len(state.Pods))
			for _, p := range state.Pods {
				names = append(names, p.Name)
			}
			return (&command.UnknownPodError{Pod: sel.pod}).Similar(names)
		}
		o.Pod = state.Pods[at].UID
	}
	return ShowMap(c, state, o)
}

// escape escapes the names of a state that others have written.
func escape(state *nodemap.State) {
	for i := range state.Pods {
		p := &state.Pods[i]
		p.UID, p.Name = table.Printable(p.UID), table.Printable(p.Name)
		for j := range p.Blocks {
			p.Blocks[j].Resource = table.Printable(p.Blocks[j].Resource)
		}
	}
	for i := range state.Devices {
		d := &state.Devices[i]
		d.Resource, d.ID, d.Pod = table.Printable(d.Resource), table.Printable(d.ID), table.Printable(d.Pod)
	}
	for i := range state.Memory {
		state.Memory[i].Resource = table.Printable(state.Memory[i].Resource)
	}
}

// ShowMap prints a map for people, or its data for programs.
func ShowMap(c *command.Ctl, state nodemap.State, o nodemap.Options) error {
	if !c.ForPrograms() {
		// The map has escaped the texts of others, and its color sequences must stay.
		_, err := io.WriteString(c.Out, nodemap.Draw(state, o))
		return err
	}
	raw, err := json.Marshal(nodemap.Describe(state))
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return c.Print("Map", raw)
}

// mapNodes reads a list of NUMA nodes that the machine has; empty is all.
func mapNodes(text string, state nodemap.State) (numa.Mask, error) {
	if text == "" {
		return 0, nil
	}
	nodes, err := numa.Parse(text)
	if err != nil {
		return 0, command.Usagef("map", "--node %s: %v", text, err)
	}
	if unknown := nodes.Minus(state.Machine.NodeMask()); !unknown.IsEmpty() {
		return 0, fmt.Errorf("--node %s: the machine has the NUMA nodes %s", text, state.Machine.NodeMask())
	}
	return nodes, nil
}

// byNodeAndResource sorts memory for a map: "memory" before huge pages.
func byNodeAndResource(list []nodemap.Memory) {
	slices.SortFunc(list, func(a, b nodemap.Memory) int {
		if a.Node != b.Node {
			return a.Node - b.Node
		}
		if (a.Resource == "memory") != (b.Resource == "memory") {
			if a.Resource == "memory" {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Resource, b.Resource)
	})
}
