package nodemap

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
)

// Detail selects how much is drawn of each CPU.
type Detail int

// The details, from much to little. DetailAuto is the first with which the map has at most
// Options.Lines lines.
const (
	DetailAuto Detail = iota
	DetailThreads
	DetailCores
	DetailCaches
	DetailNodes
)

// MinWidth is the least width for which lines are kept within the width.
const MinWidth = 40

// Options selects how a map is drawn.
type Options struct {
	// Width is the number of columns; less than MinWidth counts as MinWidth.
	Width int
	// Lines bounds the lines above the legend with DetailAuto; 0 is no bound.
	Lines  int
	Detail Detail
	// ASCII keeps to ASCII characters, Color adds the terminal's color sequences.
	ASCII, Color bool
	// Nodes are the NUMA nodes to draw; empty means all.
	Nodes numa.Mask
	// Pod is the uid of the only pod that is drawn with its letter; empty means all pods.
	Pod string
}

// canvas is a map while it is drawn.
type canvas struct {
	Options
	plan  *plan
	signs Signs
	only  int
	lines []string
}

// Draw returns the map: a summary, the machine, and the legend.
func Draw(s State, o Options) string {
	o.Width = max(o.Width, MinWidth)
	c := &canvas{Options: o, plan: newPlan(s), signs: unicodeSigns, only: -1}
	if o.ASCII {
		c.signs = asciiSigns
	}
	if i, ok := c.plan.podOf[o.Pod]; ok && o.Pod != "" {
		c.only = i
	}
	if o.Nodes.IsEmpty() {
		c.Nodes = s.Machine.NodeMask()
	}
	for c.Detail = max(o.Detail, DetailThreads); ; c.Detail++ {
		c.lines = nil
		c.summary()
		c.sockets()
		c.memoryOnly()
		c.elsewhere()
		if o.Detail != DetailAuto || o.Lines == 0 || len(c.lines) <= o.Lines || c.Detail == DetailNodes {
			break
		}
	}
	c.legend()
	return strings.Join(c.lines, "\n") + "\n"
}

// line adds a line without colors and cuts it at the width.
func (c *canvas) line(format string, args ...any) {
	text := strings.TrimRight(fmt.Sprintf(format, args...), " ")
	c.lines = append(c.lines, c.cut(text, c.Width))
}

// cut shortens a text to a width and marks that it did.
func (c *canvas) cut(text string, width int) string {
	runes := []rune(text)
	switch {
	case len(runes) <= width:
		return text
	case width < 1:
		return ""
	case c.ASCII:
		return string(runes[:width-1]) + "~"
	}
	return string(runes[:width-1]) + "…"
}

// wrapped adds words, each of them whole, in as many lines as they need.
func (c *canvas) wrapped(label string, indent int, words [][]sign, gap bool) {
	head := fmt.Sprintf("%*s%s", indent, "", label)
	start := max(indent+labelWidth, utf8.RuneCountInString(head)+1)
	room := c.Width - start
	var row []sign
	flush := func() {
		c.lines = append(c.lines, fmt.Sprintf("%-*s", start, head)+c.paint(row))
		head, row = "", nil
	}
	for _, w := range words {
		between := 0
		if gap && len(row) > 0 {
			between = 1
		}
		if len(row)+between+len(w) > room && len(row) > 0 {
			flush()
			between = 0
		}
		if between > 0 {
			row = append(row, sign{' ', 0})
		}
		row = append(row, w...)
	}
	if len(row) > 0 {
		flush()
	}
}

// labelWidth is how far signs stand behind the beginning of their label.
const labelWidth = 15

func (c *canvas) summary() {
	m := c.plan.Machine
	text := strings.Join([]string{
		table.Count(m.NumSockets(), "socket"), table.Count(m.NodeMask().Len(), "NUMA node"), table.Count(m.NumUncores(), "shared cache"),
		table.Count(m.NumCores(), "core"), table.Count(m.CPUs().Len(), "CPU"),
	}, ", ")
	c.line("%s", text)
	counts := fmt.Sprintf("CPUs: %d exclusive", c.plan.count(exclusive, broken))
	kept := fmt.Sprintf("%d reserved", c.plan.count(reserved))
	if n := c.plan.count(forClaims); n > 0 {
		kept += fmt.Sprintf(", %d for claims", n)
	}
	if c.plan.sharesReserved() {
		counts += fmt.Sprintf(", %d shared (of them %s)", c.plan.count(shared, reserved, forClaims), kept)
	} else {
		counts += fmt.Sprintf(", %d shared, %s", c.plan.count(shared), kept)
	}
	if n := c.plan.count(unknown); n > 0 {
		counts += fmt.Sprintf(", %d of unknown use", n)
	}
	if !c.plan.Offline.IsEmpty() {
		counts += fmt.Sprintf(", offline: %s", c.plan.Offline)
	}
	c.line("%s", counts)
	if c.plan.Revision > 0 {
		c.line("revision %d", c.plan.Revision)
	}
}

// sockets draws the nodes with CPUs below their sockets. A node on several sockets is drawn
// below each, with its memory and devices below the first.
func (c *canvas) sockets() {
	m := c.plan.Machine
	var drawn numa.Mask
	for _, socket := range m.Sockets() {
		cpus := m.CPUsInSocket(socket)
		nodes := m.NodesOf(cpus).Intersect(c.Nodes)
		if nodes.IsEmpty() {
			continue
		}
		c.line("")
		if socket < 0 {
			c.line("socket unknown")
		} else {
			c.line("socket %d", socket)
		}
		for node := range nodes.All() {
			c.node(node, cpus.Intersect(m.CPUsInNode(node)), !drawn.Contains(node))
			drawn = drawn.With(node)
		}
	}
}

func (c *canvas) node(node int, cpus cpuset.Set, first bool) {
	if c.Detail == DetailNodes {
		c.nodeLine(node, cpus)
		return
	}
	c.line("  node %d   %s", node, c.distances(node))
	switch c.Detail {
	case DetailCaches:
		c.bar("CPUs", 4, c.cpuParts(cpus), uint64(cpus.Len()), c.freeText(cpus))
	default:
		for _, cache := range c.plan.Machine.Uncores() {
			if group := c.plan.Machine.CPUsInUncore(cache).Intersect(cpus); !group.IsEmpty() {
				c.cache(cache, group)
			}
		}
	}
	if !first {
		return
	}
	c.nodeMemory(node)
	c.devices(node)
}

// nodeMemory draws a node's memory and huge pages. If the memory manager does not allocate by
// NUMA node, it prints the amounts.
func (c *canvas) nodeMemory(node int) {
	allocated := false
	for _, m := range c.plan.Memory {
		if m.Node == node {
			c.memory(m, 4)
			allocated = true
		}
	}
	if n, ok := c.plan.Machine.Node(node); ok && !allocated && n.MemoryBytes > 0 {
		text := table.Bytes(n.MemoryBytes)
		for _, p := range n.HugePages {
			if p.Count > 0 {
				text += fmt.Sprintf(", %d huge pages of %s", p.Count, table.Bytes(p.SizeKiB<<10))
			}
		}
		c.line("%-*s%s, not allocated by NUMA node", 4+labelWidth, "    memory", text)
	}
}

// cache draws the cores of a shared cache.
func (c *canvas) cache(id int, cpus cpuset.Set) {
	var words [][]sign
	m := c.plan.Machine
	for left := cpus; !left.IsEmpty(); {
		low, _ := left.Min()
		cpu, _ := m.CPU(low)
		core := m.CPUsInCore(cpu.Core).Intersect(cpus).Union(cpuset.Of(low))
		left = left.Minus(core)
		var word []sign
		for thread := range core.All() {
			word = append(word, c.cpu(thread))
		}
		if c.Detail == DetailCores {
			word = []sign{c.fold(word)}
		}
		words = append(words, word)
	}
	label := fmt.Sprintf("cache %d", id)
	if id < 0 {
		label = "CPUs"
	}
	c.wrapped(label, 4, words, c.Detail == DetailThreads && m.CPUsPerCore() > 1)
}

// fold is the sign of several CPUs: theirs if they agree.
func (c *canvas) fold(signs []sign) sign {
	for _, s := range signs[1:] {
		if s != signs[0] {
			return sign{c.signs.Several, 0}
		}
	}
	return signs[0]
}

// nodeLine is a node in one line.
func (c *canvas) nodeLine(node int, cpus cpuset.Set) {
	text := c.freeText(cpus)
	for _, m := range c.plan.Memory {
		if m.Node == node {
			text += fmt.Sprintf(", %s %s", m.Resource, table.Bytes(m.Allocatable-min(m.Allocatable, m.Held)))
		}
	}
	c.bar(fmt.Sprintf("node %d", node), 2, c.cpuParts(cpus), uint64(cpus.Len()), text+" free")
}

// freeText counts the CPUs that can still become exclusive.
func (c *canvas) freeText(cpus cpuset.Set) string {
	free := 0
	for id := range cpus.All() {
		if c.plan.uses[id].kind == shared {
			free++
		}
	}
	return fmt.Sprintf("%d of %s", free, table.Count(cpus.Len(), "CPU"))
}

// stretch is a length of one sign in a bar.
type stretch struct {
	sign
	amount uint64
}

// cpuParts counts CPUs by sign: pods first, then what is reserved, then the rest.
func (c *canvas) cpuParts(cpus cpuset.Set) []stretch {
	var out []stretch
	add := func(s sign) {
		if i := slices.IndexFunc(out, func(o stretch) bool { return o.sign == s }); i >= 0 {
			out[i].amount++
			return
		}
		out = append(out, stretch{s, 1})
	}
	for _, kinds := range [][]useKind{{exclusive, broken}, {unknown, offline}, {reserved}, {forClaims}, {shared}} {
		var ids []int
		for id := range cpus.All() {
			if slices.Contains(kinds, c.plan.uses[id].kind) {
				ids = append(ids, id)
			}
		}
		slices.SortStableFunc(ids, func(a, b int) int { return c.plan.uses[a].pod - c.plan.uses[b].pod })
		for _, id := range ids {
			add(c.cpu(id))
		}
	}
	return out
}

// barWidth is the length of a whole bar: what the width leaves next to label and text, at most
// 40 columns.
func (c *canvas) barWidth(indent int, text string) int {
	return max(8, min(40, c.Width-indent-labelWidth-2-utf8.RuneCountInString(text)))
}

// bar draws amounts in proportion. An amount above 0 has at least one sign where there is room
// for that; what the amounts leave of the total is free.
func (c *canvas) bar(label string, indent int, parts []stretch, total uint64, text string) {
	width := c.barWidth(indent, text)
	var signs []sign
	if total > 0 {
		for i, n := range shares(parts, total, width) {
			for range n {
				signs = append(signs, parts[i].sign)
			}
		}
		for len(signs) < width {
			signs = append(signs, sign{c.signs.Free, dim})
		}
	}
	head := fmt.Sprintf("%*s%s", indent, "", label)
	start := max(indent+labelWidth, utf8.RuneCountInString(head)+1)
	room := c.Width - start - len(signs) - 2
	if start+8 > c.Width || room < 0 {
		signs = signs[:max(0, min(len(signs), c.Width-start-2))]
		room = c.Width - start - len(signs) - 2
	}
	c.lines = append(c.lines, strings.TrimRight(fmt.Sprintf("%-*s%s  %s", start, head, c.paint(signs), c.cut(text, room)), " "))
}

// shares divides a width in proportion to the parts of a total.
func shares(parts []stretch, total uint64, width int) []int {
	out := make([]int, len(parts))
	left, sum := width, uint64(0)
	for _, p := range parts {
		sum += p.amount
	}
	total = max(total, sum)
	for i, p := range parts {
		n := int(float64(p.amount) / float64(total) * float64(width))
		if p.amount > 0 {
			n = max(n, 1)
		}
		out[i] = min(n, left)
		left -= out[i]
	}
	return out
}

// memory draws memory, or huge pages of a size, of a node.
func (c *canvas) memory(m Memory, indent int) {
	var parts []stretch
	for _, p := range c.plan.held(m) {
		parts = append(parts, stretch{c.pod(p.pod), p.amount})
	}
	claimed, rest := c.plan.claimed(m)
	for _, p := range claimed {
		parts = append(parts, stretch{c.pod(p.pod), p.amount})
	}
	if rest > 0 {
		parts = append(parts, stretch{sign{c.signs.Reserved, dim}, rest})
	}
	text := fmt.Sprintf("%s of %s free", table.Bytes(m.Allocatable-min(m.Allocatable, m.Held)), table.Bytes(m.Allocatable))
	if m.KernelFree != nil {
		text += fmt.Sprintf(", kernel %s", table.Bytes(*m.KernelFree))
	}
	c.bar(m.Resource, indent, parts, m.Allocatable+m.Reserved, text)
}

// distances prints the distances from a node to the others, from the firmware.
func (c *canvas) distances(node int) string {
	var out []string
	for other := range c.plan.Machine.NodeMask().All() {
		if d, ok := c.plan.Machine.Distances().Between(node, other); ok {
			out = append(out, strconv.Itoa(d))
		}
	}
	if len(out) < 2 {
		return ""
	}
	return "distances " + strings.Join(out, " ")
}

// device is the sign of a device: its holder's, or whether it is free.
func (c *canvas) device(d Device) sign {
	switch i, ok := c.plan.podOf[d.Pod]; {
	case !d.Healthy && d.Pod != "":
		return sign{c.signs.Broken, 160}
	case !d.Healthy:
		return sign{c.signs.Offline, 160}
	case ok:
		return c.pod(i)
	case d.Pod != "":
		return sign{c.signs.Unknown, 0}
	}
	return sign{c.signs.Free, dim}
}

// devices draws the devices whose lowest NUMA node is this one. Devices with several nodes name
// the others.
func (c *canvas) devices(node int) {
	c.deviceRows(4, func(d Device) bool {
		low, ok := d.Nodes.Lowest()
		return ok && low == node
	})
}

// elsewhere draws the devices without a known node.
func (c *canvas) elsewhere() {
	if !slices.ContainsFunc(c.plan.Devices, func(d Device) bool { return d.Nodes.IsEmpty() }) || c.Nodes != c.plan.Machine.NodeMask() {
		return
	}
	c.line("")
	c.line("devices without a NUMA node")
	c.deviceRows(2, func(d Device) bool { return d.Nodes.IsEmpty() })
}

func (c *canvas) deviceRows(indent int, drawn func(Device) bool) {
	type key struct {
		resource string
		nodes    numa.Mask
	}
	var keys []key
	rows := map[key][][]sign{}
	free := map[key]int{}
	for _, d := range c.plan.Devices {
		if !drawn(d) {
			continue
		}
		k := key{d.Resource, d.Nodes}
		if rows[k] == nil {
			keys = append(keys, k)
		}
		rows[k] = append(rows[k], []sign{c.device(d)})
		if d.Healthy && d.Pod == "" {
			free[k]++
		}
	}
	for _, k := range keys {
		text := fmt.Sprintf("%s, %d of %d free", table.Printable(k.resource), free[k], len(rows[k]))
		if k.nodes.Len() > 1 {
			text += fmt.Sprintf(", near nodes %s", k.nodes)
		}
		if len(rows[k]) > fewDevices {
			c.line("%*s%s", indent, "", text)
			c.wrapped("", indent, rows[k], false)
			continue
		}
		head := fmt.Sprintf("%*sdevices", indent, "")
		c.lines = append(c.lines, fmt.Sprintf("%-*s%s  %s", indent+labelWidth, head, c.paint(slices.Concat(rows[k]...)),
			c.cut(text, c.Width-indent-labelWidth-len(rows[k])-2)))
	}
}

// fewDevices is how many devices share a line with their resource's name.
const fewDevices = 16

// memoryOnly draws the nodes without CPUs. Consecutive equal nodes share their lines.
func (c *canvas) memoryOnly() {
	nodes := c.Nodes.Minus(c.plan.Machine.CPUNodeMask())
	if nodes.IsEmpty() {
		return
	}
	c.line("")
	c.line("nodes without CPUs")
	ids := nodes.IDs()
	for i := 0; i < len(ids); {
		n := i + 1
		for n < len(ids) && c.alike(ids[i], ids[n]) {
			n++
		}
		name := fmt.Sprintf("node %d", ids[i])
		if n > i+1 {
			name = fmt.Sprintf("nodes %s, each", numa.Of(ids[i:n]...))
		}
		c.line("  %s", name)
		c.nodeMemory(ids[i])
		for _, id := range ids[i:n] {
			c.devices(id)
		}
		i = n
	}
}

// alike reports whether the memory of two nodes is equal and unallocated.
func (c *canvas) alike(a, b int) bool {
	of := func(node int) (out []Memory) {
		for _, m := range c.plan.Memory {
			if m.Node == node {
				m.Node, m.KernelFree = 0, nil
				out = append(out, m)
			}
		}
		return out
	}
	ma := of(a)
	return slices.Equal(ma, of(b)) && !slices.ContainsFunc(ma, func(m Memory) bool { return m.Held > 0 })
}
