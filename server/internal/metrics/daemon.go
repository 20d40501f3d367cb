package metrics

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger/history"
)

// daemonCollector reads the gauges about berthd itself. Functions that are nil give nothing.
type daemonCollector struct {
	watchers    func() int
	ledgerBytes func() int64
	history     func() (history.Stats, bool)
	plugins     func() *device.Snapshot
}

var (
	descBuild = prometheus.NewDesc(buildInfo,
		"1, with the version, the commit and the Go version of berthd.", []string{"version", "commit", "go_version"}, nil)
	descWatchers = prometheus.NewDesc(watchStreams,
		"Watch streams that are open.", nil, nil)
	descLedgerBytes = prometheus.NewDesc(ledgerBytes,
		"Size of the ledger's file.", nil, nil)
	descHistoryEntries = prometheus.NewDesc(historyEntries,
		"Entries of the history of calls.", nil, nil)
	descHistoryBytes = prometheus.NewDesc(historyBytes,
		"Size of the history of calls, as it is stored.", nil, nil)
	descHistoryOldest = prometheus.NewDesc(historyOldest,
		"Time of the oldest entry of the history, in seconds since 1970.", nil, nil)
	descHistoryOmitted = prometheus.NewDesc(historyOmitted,
		"Refusals and changes that the history does not have, because their user had too many.", nil, nil)
	descDevicePlugins = prometheus.NewDesc(devicePlugins,
		"Device resources by the state of their plugin.", []string{labelState}, nil)
)

// Describe implements prometheus.Collector.
func (c daemonCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descBuild, descWatchers, descLedgerBytes, descHistoryEntries, descHistoryBytes,
		descHistoryOldest, descHistoryOmitted, descDevicePlugins} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c daemonCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- series(d, prometheus.GaugeValue, value, labels...)
	}
	v := version.Of()
	gauge(descBuild, 1, v.Version, v.Commit, v.Go)
	if c.watchers != nil {
		gauge(descWatchers, float64(c.watchers()))
	}
	if c.ledgerBytes != nil {
		gauge(descLedgerBytes, float64(c.ledgerBytes()))
	}
	if c.history != nil {
		if h, ok := c.history(); ok {
			gauge(descHistoryEntries, float64(h.Entries))
			gauge(descHistoryBytes, float64(h.Bytes))
			if !h.Oldest.IsZero() {
				gauge(descHistoryOldest, float64(h.Oldest.UnixMilli())/1000)
			}
			out <- series(descHistoryOmitted, prometheus.CounterValue, float64(h.Omitted))
		}
	}
	if c.plugins == nil {
		return
	}
	states := map[device.State]int{}
	for r := range c.plugins().Resources() {
		states[r.State]++
	}
	for _, s := range []device.State{device.Connected, device.Stopped, device.Expected, device.Expired} {
		gauge(descDevicePlugins, float64(states[s]), string(s))
	}
}

// ownOnly leaves out the families that a kubelet on the same node has, too.
func ownOnly[F interface{ GetName() string }](gather func() ([]F, error)) func() ([]F, error) {
	return func() ([]F, error) {
		all, err := gather()
		return slices.DeleteFunc(all, func(f F) bool {
			return !slices.ContainsFunc([]string{"berth_", "go_", "process_"},
				func(own string) bool { return strings.HasPrefix(f.GetName(), own) })
		}), err
	}
}

// family is one of the metrics with the same name.
type family interface {
	proto.Message
	GetName() string
}

// named adds the families of ownNames by their second name.
func named[F family](gather func() ([]F, error)) func() ([]F, error) {
	return func() ([]F, error) {
		all, err := gather()
		for _, f := range all {
			if own, ok := ownNames[f.GetName()]; ok {
				second := proto.CloneOf(f)
				m := second.ProtoReflect()
				m.Set(m.Descriptor().Fields().ByName("name"), protoreflect.ValueOfString(own))
				all = append(all, second)
			}
		}
		return all, err
	}
}
