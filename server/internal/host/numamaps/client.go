package numamaps

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// Client sends requests to a reader. It is safe for concurrent use.
type Client struct {
	conn io.ReadWriteCloser

	mu      sync.Mutex // guards all below, and writes to conn
	to      *json.Encoder
	last    uint64
	waiting map[uint64]chan answer
	ended   bool
}

// NewClient returns a client, which closes the connection when the reader has ended.
func NewClient(conn io.ReadWriteCloser) *Client {
	c := &Client{conn: conn, to: json.NewEncoder(conn), waiting: map[uint64]chan answer{}}
	go c.receive()
	return c
}

// receive passes answers on until the connection ends.
func (c *Client) receive() {
	from := json.NewDecoder(c.conn)
	for {
		var a answer
		if err := from.Decode(&a); err != nil {
			break
		}
		c.mu.Lock()
		if to := c.waiting[a.ID]; to != nil {
			to <- a // its buffer has room for one
		}
		delete(c.waiting, a.ID)
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	_ = c.conn.Close()
	for _, to := range c.waiting {
		close(to)
	}
	clear(c.waiting)
}

// Check returns whether a process can be read. Errors are those of Read.
func (c *Client) Check(ctx context.Context, pid int) error {
	_, err := c.ask(ctx, request{PID: pid, Check: true})
	return err
}

// Read returns the huge pages that a process has mapped. A process that has ended is an error of class NotFound, one
// that berthd may not read of class Unsupported. Any other error is of class Unavailable.
func (c *Client) Read(ctx context.Context, pid int) (cgroup.HugeBytes, error) {
	return c.ask(ctx, request{PID: pid})
}

func (c *Client) ask(ctx context.Context, r request) (cgroup.HugeBytes, error) {
	to, id, err := c.send(r)
	if err != nil {
		return nil, errdefs.Unavailablef("read where the huge pages of process %d are: %w", r.PID, err)
	}
	select {
	case a, ok := <-to:
		switch {
		case !ok:
			return nil, errdefs.Unavailablef("read where the huge pages of process %d are: %w", r.PID, errEnded)
		case a.Gone:
			return nil, errdefs.NotFoundf("there is no process %d", r.PID)
		case a.Denied:
			return nil, errdefs.Unsupportedf("read where the huge pages of process %d are: %s: that needs CAP_SYS_PTRACE", r.PID, a.Error)
		case a.Error != "":
			return nil, errdefs.Unavailablef("read where the huge pages of process %d are: %s", r.PID, a.Error)
		}
		return a.Pages, nil
	case <-ctx.Done():
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
		return nil, errdefs.Unavailablef("read where the huge pages of process %d are: %w", r.PID, ctx.Err())
	}
}

// errEnded means that no process can be read before the next start of berthd, which cannot execute a program.
var errEnded = errors.New("the process of berthd that reads them has ended: restart berthd")

// send sends a request, and returns where its answer arrives. A write does not block: the reader answers all
// requests, and few are sent at once.
func (c *Client) send(r request) (to chan answer, id uint64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, 0, errEnded
	}
	c.last++
	r.ID = c.last
	if err := c.to.Encode(r); err != nil {
		return nil, 0, err
	}
	to = make(chan answer, 1)
	c.waiting[r.ID] = to
	return to, r.ID, nil
}
