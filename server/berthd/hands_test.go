package main

import (
	"context"
	"fmt"
	"github.com/berthd/berth/clients/berth"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
)

// TestManyCallersOnFewPods: many callers admit, resize, remove and list the same few
// pods at once, in two specifications, under changing policies, and some go away in
// the middle of their call. Every answer is one that a caller alone could have had,
// the ledger is sound all the time, and the next daemons agree.
func TestManyCallersOnFewPods(t *testing.T) {
	t.Parallel()
	const callers, rounds, uids = 12, 25, 5
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	n := newNode(t, "--machine", "2s2n4c2t,mem=64Gi", "--cpu-manager-policy", "static", "--reserved-cpus", "0")
	n.kernel = false
	d := n.start()
	plugin := d.plugin("g0@0 g1@1 g2@2 g3@3")
	may := map[string][]codes.Code{
		"admit":  {codes.FailedPrecondition},              // it is here with another specification
		"resize": {codes.NotFound, codes.InvalidArgument}, // it is not here, or holds CPUs of its own
	}
	var work sync.WaitGroup
	for c := range callers {
		rnd := rand.New(rand.NewPCG(seed, uint64(c)))
		conn := d.as(os.Getuid())
		agent, reader := admissionv1.NewAdmissionServiceClient(conn), allocationv1.NewAllocationServiceClient(conn)
		do := func(ctx context.Context, uid string) (what string, err error) {
			switch rnd.IntN(6) {
			case 0, 1:
				pod := guaranteed(uid, 1, rnd.IntN(2))
				if rnd.IntN(2) == 0 {
					pod = limited(uid, "100m", "64Mi")
				}
				_, err = agent.Admit(ctx, &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod},
					DryRun: rnd.IntN(4) == 0})
				return "admit", err
			case 2, 3:
				_, err = agent.RemovePod(ctx, &admissionv1.RemovePodRequest{PodUid: uid})
				return "remove", err
			case 4:
				_, err = agent.Resize(ctx, berth.ResizeTo(limited(uid, fmt.Sprintf("%dm", 100+rnd.IntN(3)), "64Mi")))
				return "resize", err
			default:
				_, err = reader.List(ctx, &allocationv1.ListRequest{})
				return "list", err
			}
		}
		work.Go(func() {
			for range rounds {
				ctx, cancel := n.ctx(), context.CancelFunc(func() {})
				if rnd.IntN(3) == 0 {
					ctx, cancel = context.WithTimeout(ctx, time.Duration(rnd.IntN(10))*time.Millisecond)
				}
				what, err := do(ctx, fmt.Sprintf("p%d", rnd.IntN(uids)))
				if err != nil && ctx.Err() == nil && status.Code(err) != codes.DeadlineExceeded &&
					!slices.Contains(may[what], status.Code(err)) {
					t.Errorf("%s: %v", what, err)
				}
				cancel()
			}
		})
	}
	for i := range 10 {
		policy := []string{"single-numa-node", "restricted", "best-effort"}[i%3]
		d.setPolicy(&topologyv1.SetPolicyRequest{TopologyPolicy: &policy})
		d.sound()
	}
	work.Wait()
	d.stop() // whose caller has gone may be under way still
	d = n.start()
	d.sound()
	before := texts(d.pods())
	d.kill()
	d = n.start()
	if after := texts(d.pods()); !reflect.DeepEqual(before, after) {
		t.Errorf("the next daemon has\n%v\nafter\n%v", after, before)
	}
	for uid := range d.pods() {
		d.remove(uid)
	}
	d.check()
	plugin.Die()
}
