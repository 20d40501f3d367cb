package seccomp

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"

	"github.com/berthd/berth/managers/errdefs"
)

// Instruction is one of classic BPF, as the kernel takes it (struct sock_filter).
type Instruction struct {
	Code   uint16
	JT, JF uint8
	K      uint32
}

// Filter is a program with the flags of seccomp(2) that it is installed with.
type Filter struct {
	Program []Instruction
	Flags   uint32
}

// Codes of instructions (include/uapi/linux/bpf_common.h).
const (
	load        = 0x20 // BPF_LD | BPF_W | BPF_ABS
	and         = 0x54 // BPF_ALU | BPF_AND | BPF_K
	jump        = 0x05 // BPF_JMP | BPF_JA
	jumpEqual   = 0x15 // BPF_JMP | BPF_JEQ | BPF_K
	jumpGreater = 0x25 // BPF_JMP | BPF_JGT | BPF_K
	jumpAtLeast = 0x35 // BPF_JMP | BPF_JGE | BPF_K
	answer      = 0x06 // BPF_RET | BPF_K
)

// Offsets in struct seccomp_data. The machines that are supported have the lower half
// of an argument first.
const (
	numberOffset    = 0
	auditOffset     = 4
	argumentsOffset = 16
)

// mostInstructions is the kernel's limit of a program (BPF_MAXINSNS).
const mostInstructions = 4096

func machineArchitectures() []architecture { return machines[runtime.GOARCH] }

// Compile makes the filter of a profile for this machine.
func Compile(p Profile) (Filter, error) { return compile(p, machineArchitectures()) }

func compile(p Profile, machine []architecture) (Filter, error) {
	if len(machine) == 0 {
		return Filter{}, errdefs.Unsupportedf("seccomp profiles are supported on x86-64 and 64-bit ARM only, and this is %s",
			runtime.GOARCH)
	}
	if err := p.check(); err != nil {
		return Filter{}, err
	}
	bits, err := p.flagBits()
	if err != nil {
		return Filter{}, err
	}
	out := []Instruction{{Code: load, K: auditOffset}}
	for i, a := range machine {
		if i > 0 && !slices.Contains(p.Architectures, a.name) {
			continue
		}
		body, err := p.body(a)
		if err != nil {
			return Filter{}, err
		}
		out = append(out, Instruction{Code: jumpEqual, K: a.audit, JT: 1}, Instruction{Code: jump, K: uint32(len(body))})
		out = append(out, body...)
	}
	out = append(out, Instruction{Code: answer, K: results[KillProcess]})
	if len(out) > mostInstructions {
		return Filter{}, errdefs.Unsupportedf("the profile becomes a filter of %d instructions, and the kernel takes %d", len(out),
			mostInstructions)
	}
	return Filter{Program: out, Flags: bits}, nil
}

// body handles the calls of one architecture. It searches the number in a tree of ranges with
// equal results.
func (p Profile) body(a architecture) ([]Instruction, error) {
	byDefault, err := p.Default.result(p.DefaultErrno)
	if err != nil {
		return nil, err
	}
	calls := a.calls()
	newest := uint32(0)
	for _, number := range calls {
		newest = max(newest, number)
	}
	rules := make([][]Rule, newest+1)
	for _, r := range p.Syscalls {
		for _, name := range r.Names {
			if number, ok := calls[name]; ok {
				rules[number] = append(rules[number], r)
			}
		}
	}
	var leaves []leaf
	for number, of := range rules {
		code, err := decide(of, byDefault)
		if err != nil {
			return nil, err
		}
		if n := len(leaves); n == 0 || !slices.Equal(leaves[n-1].code, code) {
			leaves = append(leaves, leaf{uint32(number), code})
		}
	}
	newer := byDefault
	if !p.Default.permits() {
		newer = results[Errno] | uint32(syscall.ENOSYS)
	}
	leaves = append(leaves, leaf{newest + 1, []Instruction{{Code: answer, K: newer}}})
	if a.foreign > 0 {
		// These would be other names for calls that the profile may refuse.
		leaves = append(leaves, leaf{a.foreign, []Instruction{{Code: answer, K: results[Errno] | uint32(syscall.ENOSYS)}}})
	}
	return append([]Instruction{{Code: load, K: numberOffset}}, search(leaves)...), nil
}

// leaf answers the calls from a number on.
type leaf struct {
	from uint32
	code []Instruction
}

// search finds the leaf of the loaded number.
func search(leaves []leaf) []Instruction {
	if len(leaves) == 1 {
		return leaves[0].code
	}
	middle := len(leaves) / 2
	low, high := search(leaves[:middle]), search(leaves[middle:])
	// Only an unconditional jump reaches far.
	out := []Instruction{{Code: jumpAtLeast, K: leaves[middle].from, JF: 1}, {Code: jump, K: uint32(len(low))}}
	return append(append(out, low...), high...)
}

// decide handles one call: the first rule whose conditions hold applies.
func decide(rules []Rule, byDefault uint32) ([]Instruction, error) {
	var out []Instruction
	for _, r := range rules {
		value, err := r.Action.result(r.Errno)
		if err != nil {
			return nil, err
		}
		var tests []Instruction
		for i := len(r.Conditions) - 1; i >= 0; i-- {
			// What comes behind a condition that does not hold: the other conditions and
			// the answer.
			tests = append(r.Conditions[i].code(len(tests)+1), tests...)
		}
		if len(tests) > 200 { // jumps reach 255 instructions
			return nil, errdefs.Unsupportedf("a rule of system call %s has %d conditions, which are too many", fmt.Sprint(r.Names),
				len(r.Conditions))
		}
		out = append(append(out, tests...), Instruction{Code: answer, K: value})
		if len(r.Conditions) == 0 {
			return out, nil
		}
	}
	return append(out, Instruction{Code: answer, K: byDefault}), nil
}

// code falls through if the condition holds, else it skips the given number of instructions too.
// The two halves of an argument are compared one after the other.
func (c Condition) code(skip int) []Instruction {
	low := argumentsOffset + 8*uint32(c.Index)
	high := low + 4
	const no = 0xff // a jump to where the condition does not hold; put in below
	var out []Instruction
	upper, lower := uint32(c.Value>>32), uint32(c.Value)
	switch c.Op {
	case Equal:
		out = []Instruction{{load, 0, 0, high}, {jumpEqual, 0, no, upper}, {load, 0, 0, low}, {jumpEqual, 0, no, lower}}
	case NotEqual:
		out = []Instruction{{load, 0, 0, high}, {jumpEqual, 0, 2, upper}, {load, 0, 0, low}, {jumpEqual, no, 0, lower}}
	case MaskedEqual:
		out = []Instruction{
			{load, 0, 0, high}, {and, 0, 0, upper}, {jumpEqual, 0, no, uint32(c.Second >> 32)},
			{load, 0, 0, low}, {and, 0, 0, lower}, {jumpEqual, 0, no, uint32(c.Second)},
		}
	case Greater:
		out = []Instruction{{load, 0, 0, high}, {jumpGreater, 3, 0, upper}, {jumpEqual, 0, no, upper}, {load, 0, 0, low},
			{jumpGreater, 0, no, lower}}
	case GreaterOrEqual:
		out = []Instruction{{load, 0, 0, high}, {jumpGreater, 3, 0, upper}, {jumpEqual, 0, no, upper}, {load, 0, 0, low},
			{jumpAtLeast, 0, no, lower}}
	case Less:
		out = []Instruction{{load, 0, 0, high}, {jumpGreater, no, 0, upper}, {jumpEqual, 0, 2, upper}, {load, 0, 0, low},
			{jumpAtLeast, no, 0, lower}}
	case LessOrEqual:
		out = []Instruction{{load, 0, 0, high}, {jumpGreater, no, 0, upper}, {jumpEqual, 0, 2, upper}, {load, 0, 0, low},
			{jumpGreater, no, 0, lower}}
	}
	for i := range out {
		away := uint8(len(out) - 1 - i + skip)
		if out[i].JT == no {
			out[i].JT = away
		}
		if out[i].JF == no {
			out[i].JF = away
		}
	}
	return out
}
