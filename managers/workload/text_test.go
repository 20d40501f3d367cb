package workload

import "testing"

func TestText(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		r      Resource
		amount int64
		want   string
	}{
		{CPU, 64000, "64"}, {CPU, 1500, "1500m"}, {CPU, 0, "0"},
		{Memory, 64 << 20, "64Mi"}, {Memory, 1<<30 + 1, "1073741825"}, {Memory, 1536 << 20, "1536Mi"}, {Memory, 0, "0"},
		{"hugepages-2Mi", 4 << 20, "4Mi"}, {EphemeralStorage, 1 << 60, "1Ei"},
		{"example.com/gpu", 2048, "2048"},
	} {
		if got := row.r.Text(row.amount); got != row.want {
			t.Errorf("%d of %s: %s, want %s", row.amount, row.r, got, row.want)
		}
	}
}
