package metrics

import (
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
)

// series returns one series of a collector. A label that is no UTF-8, such as the file name of a socket, is quoted: with one such
// label, no metric could be read.
func series(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) prometheus.Metric {
	for i, label := range labels {
		if !utf8.ValidString(label) {
			labels = slices.Clone(labels)
			labels[i] = strconv.Quote(label)
		}
	}
	return prometheus.MustNewConstMetric(d, kind, value, labels...)
}
