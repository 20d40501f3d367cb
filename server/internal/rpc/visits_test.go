package rpc

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/peer"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
)

// TestAgentsAreLogged: an agent comes with its first call that may change something, and goes with
// its last connection.
func TestAgentsAreLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	v := newVisits(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}})), newLines())
	type connection struct {
		net.Conn
		call func(method string, req any)
	}
	dial := func(uid uint32) connection {
		near, far := net.Pipe()
		t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
		c, info, err := visitCredentials{asPeer{who: Peer{UID: uid, PID: 7}}, v}.Clone().ServerHandshake(near)
		if err != nil {
			t.Fatal(err)
		}
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info})
		if who, ok := PeerOf(ctx); !ok || who.UID != uid {
			t.Fatalf("the peer is %v, %t", who, ok)
		}
		return connection{c, func(method string, req any) { noteAgent(ctx, method, req) }}
	}
	expect := func(step string, want ...string) {
		t.Helper()
		if got := strings.TrimSpace(out.String()); got != strings.Join(want, "\n") {
			t.Errorf("%s: logged\n%s\nwant\n%s", step, got, strings.Join(want, "\n"))
		}
		out.Reset()
	}
	const admit, get = "/berth.admission.v1.AdmissionService/Admit", "/berth.allocation.v1.AllocationService/Get"
	a, b := dial(1), dial(1)
	a.call(get, &allocationv1.GetRequest{})
	a.call(admit, &admissionv1.AdmitRequest{DryRun: true, Owner: "x"})
	expect("who only reads")
	a.call("/berth.allocation.v1.AllocationService/Allocate",
		&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "u"}})
	expect("for a pod whose owner the request does not name")
	a.call(admit, &admissionv1.AdmitRequest{Owner: "x"})
	a.call(admit, &admissionv1.AdmitRequest{Owner: "x"})
	b.call(admit, &admissionv1.AdmitRequest{Owner: "x"})
	expect("first call", `msg="agent connected" event=peer kind=agent state=came owner=x peer="uid 1, gid 0, pid 7"`)
	b.call(admit, &admissionv1.AdmitRequest{})
	expect("another owner", `msg="agent connected" event=peer kind=agent state=came owner=default peer="uid 1, gid 0, pid 7"`)
	_ = a.Close()
	_ = a.Close()
	expect("one of two connections")
	_ = b.Close()
	expect("the last",
		`msg="agent has gone" event=peer kind=agent state=gone owner=x peer="uid 1, gid 0, pid 7"`,
		`msg="agent has gone" event=peer kind=agent state=gone owner=default peer="uid 1, gid 0, pid 7"`)
	b.call(admit, &admissionv1.AdmitRequest{Owner: "y"})
	expect("a call that ends after its connection")
	if len(v.here) != 0 {
		t.Errorf("left: %v", v.here)
	}
	const burst = 5
	v.lines = &lines{limit: rate.NewLimiter(0, burst)}
	for range 3 * burst {
		c := dial(2)
		c.call(admit, &admissionv1.AdmitRequest{Owner: "z"})
		_ = c.Close()
	}
	if n := strings.Count(out.String(), "\n"); n != burst {
		t.Errorf("%d lines of a flood, want %d", n, burst)
	}
}
