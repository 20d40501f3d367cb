package metrics_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/internal/deviceplugin/registry"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/system"
)

// TestDaemon: the metrics of berthd itself, and that the kubelet's names can be left out.
func TestDaemon(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})
	plugins := device.NewInventory(nil, time.Unix(0, 0))
	session := plugins.Registered("example.com/gpu", device.Options{}, time.Unix(1, 0))
	plugins.Listed(session, []device.Device{{ID: "g0", Healthy: true}}, time.Unix(1, 0))
	set := metrics.New()
	set.Start(system.Sources{
		View: l.View, Settings: func() system.Settings { return system.Settings{} },
		Sockets:  func() []registry.Socket { return nil },
		Watchers: func() int { return 3 }, LedgerBytes: func() int64 { return 65536 },
		History: func() (history.Stats, bool) {
			return history.Stats{Entries: 7, Bytes: 900, Oldest: time.Unix(1700000000, 0), Omitted: 4}, true
		},
		Plugins: plugins.Snapshot,
	})
	for _, kubelet := range []bool{true, false} {
		page := httptest.NewRecorder()
		set.Handler(kubelet).ServeHTTP(page, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
		text := page.Body.String()
		for _, want := range []string{
			`berth_build_info{commit="`, "berth_watch_streams 3", "berth_ledger_size_bytes 65536", "berth_ledger_revision ",
			"berth_history_entries 7", "berth_history_size_bytes 900", "berth_history_oldest_timestamp_seconds 1.7e+09",
			"berth_history_omitted_total 4",
			`berth_device_plugins{state="connected"} 1`, `berth_device_plugins{state="expired"} 0`, "go_goroutines ",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("kubelet's names %t: the page lacks %s", kubelet, want)
			}
		}
		for _, name := range []string{"\nkubelet_cpu_manager_", "\nkubelet_topology_manager_"} {
			if strings.Contains(text, name) != kubelet {
				t.Errorf("kubelet's names %t: %q on the page: %t", kubelet, name, !kubelet)
			}
		}
	}
}
