package memtree

import (
	"maps"
	"slices"
)

// Spawn starts a process in the root and returns its number.
func (t *Tree) Spawn(n Nature) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.spawn(n, t.root).pid
}

func (t *Tree) spawn(n Nature, g *group) *process {
	t.lastPID++
	p := t.adopt(t.lastPID)
	delete(t.root.procs, p.pid)
	p.nature, p.group = n, g
	g.procs[p.pid] = p
	return p
}

// adopt puts a process into the root.
func (t *Tree) adopt(pid int) *process {
	p := &process{pid: pid, group: t.root}
	t.procs[pid] = p
	t.root.procs[pid] = p
	return p
}

// Turn changes the nature of a process that is still there.
func (t *Tree) Turn(pid int, n Nature) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.procs[pid]; p != nil {
		p.nature = n
	}
}

// Kill sends SIGKILL to a process.
func (t *Tree) Kill(pid int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.procs[pid]; p != nil {
		t.kill(p)
	}
}

func (t *Tree) kill(p *process) {
	if p.nature == Stuck {
		return
	}
	if p.nature == Forking && !p.frozen {
		t.spawn(Forking, p.group)
	}
	delete(t.procs, p.pid)
	delete(p.group.procs, p.pid)
}

// killAll ends every process of a group and of those below: frozen first, so
// that none forks meanwhile.
func (t *Tree) killAll(g *group) {
	for _, p := range g.procs {
		p.frozen = true
	}
	for _, pid := range slices.Collect(maps.Keys(g.procs)) {
		t.kill(g.procs[pid])
	}
	for _, p := range g.procs {
		p.frozen = false
	}
	for _, c := range g.children {
		t.killAll(c)
	}
}
