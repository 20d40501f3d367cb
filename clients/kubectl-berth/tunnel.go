package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// tunnel is a connection to a node's berthd: the streams of a program that runs in the pod.
type tunnel struct {
	net.Conn
	end   context.CancelFunc
	ended chan struct{}
	// err is how the program has ended.
	err error
}

// maxSaid is how much of what a program says about its end is kept.
const maxSaid = 4 << 10

// open starts a program, makes its input and output a connection, and waits for the first of its output: berthd speaks first.
func open(ctx context.Context, program string, args ...string) (*tunnel, error) {
	running, end := context.WithCancel(context.Background())
	cmd := exec.CommandContext(running, program, args...)
	stderr := &beginning{left: maxSaid}
	cmd.Stderr, cmd.WaitDelay = stderr, time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		end()
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		end()
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		end()
		return nil, fmt.Errorf("run kubectl: %w", err)
	}
	ours, theirs := net.Pipe()
	t := &tunnel{Conn: ours, end: end, ended: make(chan struct{})}
	spoken := make(chan struct{})
	go func() {
		_, _ = io.Copy(in, theirs) // the end of the connection is the end of the input
		_ = in.Close()
	}()
	go func() {
		defer close(t.ended)
		buffered := bufio.NewReader(out)
		if _, err := buffered.Peek(1); err == nil {
			close(spoken)
		}
		_, _ = io.Copy(theirs, buffered)
		t.err = cmd.Wait()
		_ = theirs.Close()
	}()
	select {
	case <-spoken:
		return t, nil
	case <-t.ended:
		err = said(stderr.text, cmp.Or(t.err, errors.New("nothing answers")))
		if strings.Contains(err.Error(), `unknown command "proxy"`) {
			err = errors.New("the berth there is older, and has no 'berthctl proxy': update it")
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = t.Close()
	return nil, fmt.Errorf("kubectl exec: %w", err)
}

// Close ends the program.
func (t *tunnel) Close() error {
	err := t.Conn.Close()
	t.end()
	<-t.ended
	return err
}

// beginning keeps the first part of what is written to it.
type beginning struct {
	mu   sync.Mutex
	text []byte
	left int
}

func (b *beginning) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(p), b.left)
	b.text, b.left = append(b.text, p[:n]...), b.left-n
	return len(p), nil
}
