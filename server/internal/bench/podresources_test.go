package bench

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/server/internal/app"
)

// containersPerPod is how many containers each pod of a list has.
const containersPerPod = 4

// runListed runs berthd with a number of pods on shared CPUs and connects to its
// podresources socket.
func runListed(t testing.TB, pods int) podresources.PodResourcesListerClient {
	t.Helper()
	berthd := runBerthd(t, func(c *config.Config, _ *app.Environment) {
		c.Limits.PodResourcesPerSecond, c.Limits.PodResourcesBurst = 1_000_000, 1_000_000
		c.Node.MaxPods = int64(pods)
	})
	for i := range pods {
		pod := wirePod(fmt.Sprint("pod", i))
		pod.Spec.Containers = nil
		for j := range containersPerPod {
			pod.Spec.Containers = append(pod.Spec.Containers, &typesv1.Container{
				Name: fmt.Sprint("c", j), Resources: &typesv1.ResourceRequirements{Requests: map[string]string{"cpu": "100m"}},
			})
		}
		if err := berthd.admitPod(t.Context(), pod, false); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := grpc.NewClient("unix:"+*berthd.config.PodResourcesDir+"/kubelet.sock",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return podresources.NewPodResourcesListerClient(conn)
}

// list returns how many containers are listed.
func list(ctx context.Context, c podresources.PodResourcesListerClient) (n int, err error) {
	resp, err := c.List(ctx, &podresources.ListPodResourcesRequest{})
	for _, p := range resp.GetPodResources() {
		n += len(p.GetContainers())
	}
	return n, err
}

// TestPodResourcesAnswers keeps the benchmark honest: everything is listed.
func TestPodResourcesAnswers(t *testing.T) {
	t.Parallel()
	if n, err := list(t.Context(), runListed(t, 3)); err != nil || n != 3*containersPerPod {
		t.Errorf("%d containers, %v", n, err)
	}
}

// BenchmarkPodResources lists all pods over the podresources socket, as exporters
// do.
func BenchmarkPodResources(b *testing.B) {
	for _, pods := range []int{50, 500} {
		b.Run(fmt.Sprintf("List, %d containers a pod/%d/berth", containersPerPod, pods), func(b *testing.B) {
			c := runListed(b, pods)
			measure(b, func() error { _, err := list(b.Context(), c); return err })
		})
	}
}
