package command

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// healthNow is the time of the test.
var healthNow = time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC)

func TestHealthText(t *testing.T) {
	t.Parallel()
	c := &Ctl{Env: Env{Now: func() time.Time { return healthNow }}}
	var history []*typesv1.HealthChange
	for i := range 6 {
		health := []typesv1.Health{typesv1.Health_HEALTH_HEALTHY, typesv1.Health_HEALTH_UNHEALTHY}[i%2]
		history = append(history, &typesv1.HealthChange{Time: timestamppb.New(healthNow.Add(time.Duration(i-6) * time.Minute)),
			Health: health})
	}
	for _, row := range []struct {
		device *typesv1.Device
		want   string
	}{
		{&typesv1.Device{Id: "d"}, ""},
		{&typesv1.Device{Id: "d", Health: typesv1.Health_HEALTH_HEALTHY}, "Healthy"},
		{&typesv1.Device{Id: "d", Health: typesv1.Health_HEALTH_HEALTHY, HealthHistory: history[:1]},
			"Healthy since 2026-11-20T11:54:00Z (6m ago)"},
		{
			&typesv1.Device{Id: "d", Health: typesv1.Health_HEALTH_UNHEALTHY, HealthHistory: history},
			"Unhealthy since 2026-11-20T11:59:00Z (60s ago); before: Healthy from 2026-11-20T11:58:00Z (2m ago), " +
				"Unhealthy from 2026-11-20T11:57:00Z (3m ago), Healthy from 2026-11-20T11:56:00Z (4m ago), and 2 more",
		},
	} {
		if got := c.healthText(row.device); got != row.want {
			t.Errorf("%q, want %q", got, row.want)
		}
	}
}
