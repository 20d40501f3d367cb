package numamaps

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/berthd/berth/managers/cgroup"
)

// maxPending is how many processes are read at once. A process can make the kernel wait, for example for a file system
// that the process itself serves. maxWaiting is how many requests wait until such a process can be read again.
const (
	maxPending = 32
	maxWaiting = 8
)

// request is a line from berthd.
type request struct {
	ID  uint64 `json:"id"`
	PID int    `json:"pid"`
	// Check only opens the file.
	Check bool `json:"check,omitempty"`
}

// answer is a line to berthd.
type answer struct {
	ID    uint64           `json:"id"`
	Pages cgroup.HugeBytes `json:"pages,omitempty"`
	// Gone means that the process has ended. Otherwise Error is why it cannot be read, and Denied means that it
	// never can be.
	Gone   bool   `json:"gone,omitempty"`
	Denied bool   `json:"denied,omitempty"`
	Error  string `json:"error,omitempty"`
}

// Serve answers requests until the connection ends. proc is /proc.
func Serve(conn io.ReadWriter, proc fs.FS) error {
	s := &server{proc: proc, to: json.NewEncoder(conn), pending: map[int][]request{}}
	for from := json.NewDecoder(conn); ; {
		var r request
		if err := from.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		s.accept(r)
	}
}

// server is the state of Serve.
type server struct {
	proc fs.FS

	mu sync.Mutex // guards all below
	to *json.Encoder
	// pending has the processes that are being read, and the requests that came meanwhile. A read that has begun is no
	// answer to them: the kernel may have moved pages since.
	pending map[int][]request
}

// accept starts to read a process, or has the request wait until the process can be read again.
func (s *server) accept(r request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	waiting, same := s.pending[r.PID]
	switch {
	case same && len(waiting) >= maxWaiting:
		s.reply(answer{ID: r.ID, Error: "earlier attempts to read it have not ended"})
	case same:
		s.pending[r.PID] = append(waiting, r)
	case len(s.pending) >= maxPending:
		s.reply(answer{ID: r.ID, Error: fmt.Sprintf("%d other processes are being read", maxPending)})
	default:
		s.pending[r.PID] = nil
		go s.work([]request{r})
	}
}

// work reads a process until no request for it is left.
func (s *server) work(batch []request) {
	for pid := batch[0].PID; len(batch) > 0; {
		a := read(s.proc, pid, !slices.ContainsFunc(batch, func(r request) bool { return !r.Check }))
		s.mu.Lock()
		for _, r := range batch {
			a.ID = r.ID
			s.reply(a)
		}
		if batch, s.pending[pid] = s.pending[pid], nil; len(batch) == 0 {
			delete(s.pending, pid)
		}
		s.mu.Unlock()
	}
}

// reply sends an answer. An error is one of the next request, too. The caller holds mu.
func (s *server) reply(a answer) { _ = s.to.Encode(a) }

// maxThreads bounds how many other threads are read if the first one has ended. One of them is enough, unless it ends meanwhile.
const maxThreads = 8

// read reads one process, or only checks that it can be read. A process without memory of its own, as one that has ended
// and was not waited for, has no pages. If the first thread of a process has ended, the kernel shows the memory only at the
// others.
func read(proc fs.FS, pid int, check bool) answer {
	dir := strconv.Itoa(pid)
	a, shown := readFile(proc, path.Join(dir, "numa_maps"), check)
	if shown || !a.Gone && a.Error != "" {
		return a
	}
	for _, thread := range threads(proc, path.Join(dir, "task")) {
		if thread == dir {
			continue
		}
		if b, shown := readFile(proc, path.Join(dir, "task", thread, "numa_maps"), check); shown || !b.Gone && b.Error != "" {
			return b
		}
	}
	return a
}

// threads lists some threads of a process; none if it has ended.
func threads(proc fs.FS, dir string) (names []string) {
	f, err := proc.Open(dir)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	if d, ok := f.(fs.ReadDirFile); ok {
		list, _ := d.ReadDir(1 + maxThreads)
		for _, e := range list {
			names = append(names, e.Name())
		}
	}
	return names
}

// readFile reads a numa_maps. shown is whether it shows memory, or for a check whether it can be opened.
func readFile(proc fs.FS, name string, check bool) (a answer, shown bool) {
	f, err := proc.Open(name)
	if err == nil {
		defer func() { _ = f.Close() }()
		if check {
			return answer{}, true
		}
		var pages cgroup.HugeBytes
		var n int
		if pages, n, err = parse(f, maxText); err == nil {
			return answer{Pages: pages}, n > 0
		}
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return answer{Gone: true}, false
	}
	return answer{Denied: errors.Is(err, fs.ErrPermission), Error: err.Error()}, false
}
