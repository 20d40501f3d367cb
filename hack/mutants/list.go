package main

// mutant is a defect: text of a file that stands there once, and what takes its
// place. suites are those of the conformance runner that may find it, the likeliest
// first. A test, as managers/memory.TestRepeatedAdmission, takes the place of a suite
// where the recordings cannot show the defect: the kubelet has it, too, or no recorded
// machine is affected.
type mutant struct {
	name, file, old, new string
	suites               []string
}

var (
	cpuSuites      = []string{"cpu_allocate", "cpu_sequences", "pod_admit"}
	cpuHints       = []string{"cpu_hints"}
	mergeSuites    = []string{"topology_merge"}
	memorySuites   = []string{"memory_allocate", "memory_sequences", "pod_admit"}
	memoryHints    = []string{"memory_hints"}
	deviceSuites   = []string{"device_allocate", "pod_admit"}
	deviceHints    = []string{"device_hints"}
	cgroupPods     = []string{"cgroup_pods"}
	cgroupConverts = []string{"cgroup_conversions"}
	histories      = []string{"clients/nri/policy.TestRandomHistories"}
)

var mutants = []mutant{
	// Packing: the order in which CPUs are taken.
	{"fullest units first", "managers/cpu/run.go", "cmp.Compare(r.count(k, a), r.count(k, b))",
		"cmp.Compare(r.count(k, b), r.count(k, a))", cpuSuites},
	{"ties by the highest id", "managers/cpu/run.go", "r.count(k, b)), cmp.Compare(a, b))", "r.count(k, b)), cmp.Compare(b, a))",
		cpuSuites},
	{"whole units of the second level are torn", "managers/cpu/run.go", "	r.takeWhole(r.second())\n", "", cpuSuites},
	{"whole units of the upper level are torn", "managers/cpu/run.go", "	r.takeWhole(r.upper())\n", "", cpuSuites},
	{"whole cores are torn", "managers/cpu/run.go", "	r.takeCores()\n", "", cpuSuites},
	{"spreading takes whole cores", "managers/cpu/run.go", "		r.takeByNumber()\n", "		r.takeTorn()\n", cpuSuites},
	{"single CPUs from the emptiest cores last", "managers/cpu/run.go", "for free := 1; free <= r.largestCore && r.need > 0; free++ {",
		"for free := r.largestCore; free >= 1 && r.need > 0; free-- {", cpuSuites},
	{"cores smaller than the average count as whole", "managers/cpu/run.go", "		return n == r.perCore\n", "		return true\n",
		cpuSuites},
	{"sockets smaller than the average count as whole", "managers/cpu/run.go", "		return n == r.perSocket\n",
		"		return true\n", cpuSuites},
	{"nodes and sockets in the wrong order", "managers/cpu/table.go", "topo.NumSockets() >= topo.NumNUMANodes()",
		"topo.NumSockets() < topo.NumNUMANodes()", cpuSuites},
	{"caches are not preferred", "managers/cpu/run.go", "		r.takeUncores()\n", "", cpuSuites},
	{"an odd rest leaves the lowest CPU of a core", "managers/cpu/uncore.go", "highest := slices.Index(chosen, slices.Max(chosen))",
		"highest := slices.Index(chosen, slices.Min(chosen))", cpuSuites},
	{"whole caches are not taken", "managers/cpu/uncore.go", "	if r.need >= r.perUncore {", "	if r.need < 0 {", cpuSuites},

	// Distribution over nodes.
	{"distribution from too few nodes", "managers/cpu/distribute.go", "least, most = (needed-1)/perNode+1, min",
		"least, most = (needed-1)/perNode, min", cpuSuites},
	{"distribution from too many nodes", "managers/cpu/distribute.go", "least, most = (needed-1)/perNode+1, min",
		"least, most = (needed-1)/perNode+2, min", cpuSuites},
	{"the last even spread wins", "managers/cpu/distribute.go",
		"squares >= d.squares {\n		return\n	}\n	score := deviation(rest)\n	if same && score >= d.score {",
		"squares > d.squares {\n		return\n	}\n	score := deviation(rest)\n	if same && score > d.score {", cpuSuites},
	{"nodes of several sockets are as good", "managers/cpu/distribute.go", "	inSocket := d.bySocket && d.oneSocket(chosen)\n",
		"	inSocket := d.bySocket\n", cpuSuites},
	{"shares by socket are not reduced", "managers/cpu/distribute.go", "share = min(share, d.avail[x]/d.group*d.group)",
		"share = min(share, d.n+d.avail[x])", cpuSuites},
	{"the most uneven spread wins", "managers/cpu/distribute.go", "		squares += x * x\n", "		squares -= x * x\n", cpuSuites},
	{"few takers of the remainder first", "managers/cpu/distribute.go", "for j := len(able); j > 0; j-- {",
		"for j := 1; j <= len(able); j++ {", cpuSuites},
	{"shares are not whole groups", "managers/cpu/distribute.go", "share := d.n / len(chosen) / d.group * d.group",
		"share := d.n / len(chosen)", cpuSuites},
	{"what does not divide is packed over nodes", "managers/cpu/distribute.go", "	if n%group != 0 {", "	if n%group == 1 && n > 4 {",
		cpuSuites},

	// What a container may have.
	{"siblings of reserved CPUs count as physical", "managers/cpu/config.go",
		"m.physical = all.Minus(m.part[core].Cover(m.reserved.Intersect(all)))", "m.physical = all.Minus(m.reserved)", cpuSuites},
	{"reserved CPUs are given out", "managers/cpu/config.go", "m.allocatable = all.Minus(m.reserved)", "m.allocatable = all", cpuSuites},
	{"the affinity is a wish of no weight", "managers/cpu/plan.go", "	if !affinity.Any {\n		aligned",
		"	if affinity.Any {\n		aligned", cpuSuites},
	{"sockets are not aligned to", "managers/cpu/plan.go", "	if m.options.bySocket {", "	if !m.options.bySocket {", cpuSuites},
	{"CPUs of init containers are not used again", "managers/cpu/plan.go", "m.near(h.available.Union(h.reusable(i)), n, affinity)",
		"m.near(h.available, n, affinity)", cpuSuites},
	{"half cores are given under full-pcpus-only", "managers/cpu/plan.go", "	if n%m.perCore != 0 {",
		"	if n%m.perCore > m.perCore {", cpuSuites},

	// Planning of a pod as a whole.
	{"an init container borrows from a sidecar that runs", "managers/workload/role.go", "			kept = minus(kept, held(i))\n", "",
		[]string{"managers/workload.TestBorrowable"}},
	{"an init container takes free CPUs first", "managers/cpu/plan.go", "{loan.Intersect(near), free.Intersect(near),",
		"{free.Intersect(near), loan.Intersect(near),", []string{"managers/admission.TestInitRunsOnItsPod"}},
	{"planning the whole pod may be worse", "managers/admission/wholepod.go",
		"return worse(whole.draft.View(), ordered.draft.View(), pod)", "return worse(whole.draft.View(), whole.draft.View(), pod)",
		[]string{"managers/admission.TestWholeFallsBack"}},

	// Hints of the CPU manager.
	{"nodes of reusable CPUs may be left out", "managers/cpu/hints.go", "m.topo.NodesOf(reusable)", "m.topo.NodesOf(cpuset.Set{})",
		cpuHints},
	{"reusable CPUs count twice", "managers/cpu/hints.go", "Need:          uint64(max(n-reusable.Len(), 0)),",
		"Need:          uint64(max(n-2*reusable.Len(), 0)),", cpuHints},
	{"preferred by what is free", "managers/cpu/hints.go", "PreferredSize: m.narrowest(n),", "PreferredSize: m.narrowest(n + 1),",
		cpuHints},
	{"sockets are not preferred", "managers/cpu/hints.go", "hints[i].Preferred || touched == sockets",
		"hints[i].Preferred || touched == sockets+len(hints)", cpuHints},
	{"fewer sockets are preferred, too", "managers/cpu/hints.go", "touched == sockets", "touched <= sockets",
		[]string{"managers/cpu.TestSocketsOfUnequalNodes"}},
	{"sockets are rounded down", "managers/cpu/hints.go", "(nodes + perSocket - 1) / perSocket", "max(nodes/perSocket, 1)", cpuHints},

	// Merging.
	{"less than is needed is as good", "managers/topology/rank.go", "	if size <= b {\n		return b - size",
		"	if size <= b {\n		return size", mergeSuites},
	{"the largest integer wins", "managers/topology/rank.go", "cmp.Compare(c.nodes, o.nodes))", "cmp.Compare(o.nodes, c.nodes))",
		mergeSuites},
	{"the farthest nodes win", "managers/topology/rank.go", "cmp.Compare(c.distance, o.distance)", "cmp.Compare(o.distance, c.distance)",
		mergeSuites},
	{"no list abstains", "managers/topology/list.go", "l.abstains = l.abstains || h.Preferred", "l.abstains = l.abstains && h.Preferred",
		mergeSuites},
	{"the list that needs least decides", "managers/topology/merge.go",
		"	for i := range lists {\n		r.B = max(r.B, lists[i].least)",
		"	for i := range lists {\n		r.B = max(1, min(r.B, lists[i].least))", mergeSuites},
	{"the highest of single nodes", "managers/topology/merge.go", "lowest, found := common.Lowest()",
		"lowest, found := max(0, common.Len()-1), common != 0", mergeSuites},
	{"only distances between neighbours count", "managers/numa/distances.go", "			if row[j] != unknown {",
		"			if row[j] != unknown && j == i+1 {", mergeSuites},
	{"distances of nodes by position", "managers/numa/distances.go", "			rows[i][online[position]] = d\n",
		"			rows[i][online[len(online)-1-position]] = d\n", mergeSuites},

	// Groups of nodes, blocks and hints of memory.
	{"groups may be used in part", "managers/memory/table.go", "		if t.use.Groups[id] != nodes {",
		"		if !nodes.IsSubsetOf(t.use.Groups[id]) {", append(memoryHints, memorySuites...)},
	{"a node of a group may be used alone", "managers/memory/table.go", "return t.group(id).Len() == 1", "return t.group(id).Len() >= 1",
		append(memoryHints, memorySuites...)},
	{"used nodes may be joined", "managers/memory/table.go", "	for id := range nodes.Intersect(t.used).All() {",
		"	for id := range nodes.Minus(t.used).All() {", append(memoryHints, memorySuites...)},
	{"huge pages are counted as memory too", "managers/memory/capacity.go",
		"			m.take(memory, node.ID, int64(bytes), \"its huge pages\")\n", "", append(memoryHints, memorySuites...)},
	{"reserved memory is given out", "managers/memory/capacity.go",
		"		m.take(c, r.Node, bytes, \"what is reserved for the system\")\n", "", append(memoryHints, memorySuites...)},
	{"amounts below zero count", "managers/memory/capacity.go", "		bytes = c.allocatable[node]\n",
		"		bytes = c.allocatable[node] - 1<<20\n", append(memoryHints, memorySuites...)},
	{"memory that is handed on is not used again", "managers/memory/family.go", "+f.reused(nodes, i) < w.bytes", " < w.bytes",
		append(memoryHints, memorySuites...)},
	{"preferred memory is not insisted on", "managers/memory/plan.go",
		"		case affinity.Preferred && !best.Preferred:\n			return 0, f.refusal(view, NoPreferredExtension, nodes)\n", "",
		memorySuites},
	{"the affinity is not extended", "managers/memory/plan.go", "best, ok := f.best(nodes)", "best, ok := f.best(0)", memorySuites},
	{"memory of a pod is counted again", "managers/memory/plan.go", "len(total) == 0 || len(h.claims(\"\")) > 0", "len(total) == 0",
		[]string{"managers/memory.TestRepeatedAdmission"}},
	{"memory of a container is counted again", "managers/memory/plan.go",
		"len(wants) == 0 || len(h.claims(req.Owner().Container)) > 0", "len(wants) == 0",
		[]string{"managers/memory.TestRepeatedAdmission"}},
	{"the narrowest set is not the smallest integer", "managers/memory/search.go",
		"(best == 0 || nodes.NarrowerThan(best)) {\n			best = nodes\n		}\n	}\n	if nodes",
		"(best == 0 || !nodes.NarrowerThan(best)) {\n			best = nodes\n		}\n	}\n	if nodes", memorySuites},

	// Devices.
	{"unaligned devices first", "managers/device/choose.go", "	p.take(s.aligned)\n	if p.need == 0 {",
		"	p.take(s.unaligned)\n	if p.need == 0 {", deviceSuites},
	{"the plugin's wish does not count", "managers/device/choose.go", "		p.take(only(s.aligned, preferred))\n",
		"		p.take(only(s.aligned, preferred)[:0])\n", deviceSuites},
	{"the plugin gets all devices", "managers/device/choose.go", "m.preferred(ctx, r, req, s.aligned, p.sorted(), n)",
		"m.preferred(ctx, r, req, free, p.sorted(), n)", deviceSuites},
	{"devices without nodes before others", "managers/device/choose.go", "	p.take(s.unaligned)\n	p.take(s.elsewhere)\n",
		"	p.take(s.elsewhere)\n	p.take(s.unaligned)\n", deviceSuites},
	{"unhealthy devices are given out", "managers/device/usage.go", "r.Healthy(d) && !used[i]", "!used[i]", deviceSuites},
	{"devices of init containers are not used again", "managers/device/choose.go",
		"	p.take(left)\n", "",
		deviceSuites},
	{"preferred devices by what is free", "managers/device/family.go", "Amount: r.Need}}}", "Amount: r.Need + 1}}}", deviceHints},
	{"reusable devices may be left out", "managers/device/family.go", "		r.Must = r.Must.With(node)\n", "", deviceHints},
	{"hints for devices have all nodes", "managers/device/family.go", "u &= f.machine; u.IsEmpty()", "u &= f.machine; !u.IsEmpty()",
		deviceHints},

	// Values of cgroups.
	{"shares are rounded up", "managers/cgroup/convert.go", "uint64(milliCPU)*sharesPerCPU/milliPerCPU, MinShares)",
		"(uint64(milliCPU)*sharesPerCPU+999)/milliPerCPU, MinShares)", cgroupPods},
	{"quotas are rounded by a microsecond", "managers/cgroup/convert.go", "return max(int64(min(quota, math.MaxInt64)), MinQuotaUS)",
		"return max(int64(min(quota+1, math.MaxInt64)), MinQuotaUS)", cgroupPods},
	{"CPUs of shares are rounded down", "managers/cgroup/convert.go", "(r*milliPerCPU+sharesPerCPU-1)/sharesPerCPU",
		"r*milliPerCPU/sharesPerCPU", cgroupConverts},
	{"weights are not linear", "managers/cgroup/convert.go", "minWeight + (shares-MinShares)*(maxWeight-minWeight)/(MaxShares-MinShares)",
		"minWeight + shares*(maxWeight-minWeight)/MaxShares", cgroupConverts},
	{"huge pages are limited to less than requested", "managers/cgroup/pod.go", "			limits[size] += bytes\n",
		"			limits[size] += bytes - 1\n", cgroupPods},
	{"memory.min for every class", "managers/cgroup/pod.go", "	if class == workload.Guaranteed {\n		return fileMemoryMin",
		"	if class != \"\" {\n		return fileMemoryMin", cgroupPods},
	{"BestEffort has the shares of its requests", "managers/cgroup/pod.go",
		"		v.CPUShares = new(uint64(MinShares))\n	}\n	if declared.CPU", "	}\n	if declared.CPU", cgroupPods},
	{"limits of Guaranteed pods must be declared", "managers/cgroup/pod.go",
		"		declared = workload.Declared{CPU: true, Memory: true}\n", "", cgroupPods},

	// A node and its container runtime.
	{"a start that is given up is forgotten", "clients/nri/policy/ends.go", " && !e.tracks.pending(other) {", " {", histories},
	{"the end of a pod forgets its starts", "clients/nri/policy/ends.go",
		"return e.tracks.hasProcess(m) || e.tracks.pending(m) })", "return e.tracks.hasProcess(m) })", histories},
	{"containers that nobody told of are not taken in", "clients/nri/policy/events.go",
		"m != nil || p.gate.released || !p.node.synchronized || ended(c) {", "m == m {", histories},
	{"a pod is admitted before the ledger is read", "clients/nri/policy/view.go", "	_, err := v.list(ctx)\n	return err\n",
		"	return nil\n", histories},
	{"a pod of single containers is admitted as a whole", "clients/nri/policy/view.go",
		"	case len(parts) > 0:\n		s.form = apart\n", "", histories},
	{"a lost pod whose claims are known is not named", "clients/nri/policy/view.go", "	known := maps.Clone(l.unadmitted)\n",
		"	known := map[string]*typesv1.PodAllocation{}\n", histories},
	{"a lost pod is admitted with another size", "clients/nri/policy/admissions.go", "		asHeld(req.GetPod(), held)\n", "", histories},
	{"an earlier sandbox releases what the next one has", "clients/nri/policy/admissions.go",
		"				if m.pod.uid != other.uid || m.name != name {", "				if m.pod != other || m.name != name {",
		[]string{"clients/nri/policy.TestEarlierSandboxReleasesNothing"}},
	{"a whole pod is admitted container by container", "clients/nri/policy/view.go", "	case all != nil:\n		s.form = whole\n",
		"	case all != nil:\n", histories},
	{"CPUs of lost members are shared", "clients/nri/policy/view.go", ".Union(v.withheld(l))", "", histories},
	{"CPUs that a member has not left are shared", "clients/nri/policy/view.go", "		cpus = cpus.Union(m.former)\n", "",
		histories},
	{"CPUs that berthd gave and took are shared", "clients/nri/policy/view.go", "m.former = m.former.Union(v.tracks.ownOf(m))",
		"m.former = v.tracks.ownOf(m)", histories},
	{"containers that are to get each other's CPUs stay", "clients/nri/policy/tracks.go", "t.tracker.Writes(shared)",
		"t.tracker.Writes(cpuset.Set{})", histories},
	{"a lost member is in nobody's way", "clients/nri/policy/placer.go",
		"			p.tracks.assign(m, cpuset.Set{}, p.tracks.ownOf(m))\n", "", histories},
	{"amounts change without berthd", "clients/nri/policy/placer.go", "err := p.placeNow(ctx, m); err != nil",
		"err := error(nil); err != nil", histories},
	{"amounts change in spite of a refusal", "clients/nri/policy/placer.go", "		m.resources = was\n", "		_ = was\n", histories},
	{"a half-done resize is not undone", "clients/nri/policy/placer.go", "			p.agenda.compareAgain(m)\n",
		"			p.agenda.incomplete = true\n", histories},
	{"CPUs of a resize without an answer are given away", "clients/nri/policy/placer.go", "m.unsure = undecided(err)", "m.unsure = false",
		histories},
	{"a container that was never stored is updated", "clients/nri/policy/ends.go", "if unstored || ",
		"if unstored = false; unstored || ", histories},
	{"a crashed container is admitted again", "clients/nri/policy/placer.go", "m.match < due || p.tracks.crashed(m)",
		"m.match < due", histories},
	{"a failed removal is awaited", "clients/nri/policy/ends.go", "		e.awaited.removalFailed(key)\n", "", histories},
	{"a pod lost as a whole gets other CPUs", "clients/nri/policy/admissions.go", "s.form, s.held, err = unadmitted, lost, errApart",
		"s.form, err = unadmitted, errApart", histories},
	{"a crashed container loses its CPUs at a connection", "clients/nri/policy/view.go",
		"s.names[name] = keptBefore; v.node.some(", "v.node.some(",
		histories},
	{"other pods get the CPUs of a container that has just crashed", "clients/nri/policy/view.go",
		"s.names[name] = keptBefore; v.node.some(", "s.names[name] = kept; v.node.some(", histories},
	{"Follow waits for the runtime", "clients/nri/policy/writer.go", "		case <-ctx.Done():\n			return nil, ctx.Err()\n",
		"", histories},
}
