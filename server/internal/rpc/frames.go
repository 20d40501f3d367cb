package rpc

import (
	"time"

	"golang.org/x/time/rate"
)

// gRPC reads the frames of all connections as fast as they come, and must answer some of them.
// Frames outside of calls (SETTINGS, PING, WINDOW_UPDATE and unknown ones), and calls that are
// canceled at once, are not limited by it. 64 connections with such frames use all processors, at
// almost no cost for the sender. The rate at which such frames of users other than root are read
// is therefore limited.
const (
	// framesPerSecond is far above what calls need: three or four each, and one for 16 KiB
	// of a large answer.
	framesPerSecond = 10_000
	framesBurst     = 2_000
	// resetCost is how many frames cost as much as a call that is given up, and refusalCost
	// as one that is refused before its message is read.
	resetCost   = 10
	refusalCost = 10
)

// Types of frames (RFC 9113, section 6).
const (
	frameData    = 0
	frameHeaders = 1
	frameReset   = 3
)

// frames follows the frames of HTTP/2 (RFC 9113, section 4.1) through a stream of bytes.
type frames struct {
	skip   int // bytes before the first frame
	header [9]byte
	have   int // of the header
	left   int // of the frame's payload
}

// preface is what a client sends before its first frame.
const preface = len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

// follow takes the next bytes. It returns how many of them are payload of data frames, and
// what the frames that begin in them cost which are no part of a call.
func (f *frames) follow(b []byte) (data, cost int) {
	k := min(f.skip, len(b))
	f.skip, b = f.skip-k, b[k:]
	for len(b) > 0 {
		if f.left == 0 {
			k := copy(f.header[f.have:], b)
			b = b[k:]
			if f.have += k; f.have < len(f.header) {
				return data, cost
			}
			f.have, f.left = 0, int(f.header[0])<<16|int(f.header[1])<<8|int(f.header[2])
			switch f.header[3] {
			case frameData, frameHeaders:
			case frameReset:
				cost += resetCost
			default:
				cost++
			}
			continue
		}
		k := min(f.left, len(b))
		if f.header[3] == frameData {
			data += k
		}
		f.left -= k
		b = b[k:]
	}
	return data, cost
}

// pace waits until frames may be handed on that cost something, or the connection ends.
func (c *counted) pace(cost int) {
	for cost > 0 {
		n := min(cost, framesBurst)
		cost -= n
		wait := c.user.frames.ReserveN(time.Now(), n).Delay()
		if wait <= 0 {
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-c.closed:
			timer.Stop()
			return
		}
	}
}

func newFrameLimit() *rate.Limiter { return rate.NewLimiter(framesPerSecond, framesBurst) }
