package store

import (
	"slices"

	"github.com/berthd/berth/managers/ledger"
)

// HistoryPages returns the pages of a sound file that the buckets of the history lead to.
func HistoryPages(data []byte) (pages []uint64) {
	r := &rawReader{walker: walker{data: data}}
	metas, _ := r.findMetas()
	r.measure(r.pageSize)
	r.walk(metas[0].root, metas[0].high)
	for page, bucket := range r.reached {
		if ledger.OfHistory(bucket) {
			pages = append(pages, page)
		}
	}
	slices.Sort(pages)
	return pages
}

// Current returns, page by page, whether a sound file's newest state is in it: the
// pages that the tree leads to, with those that belong to them.
func Current(data []byte) []bool {
	r := &rawReader{walker: walker{data: data}}
	metas, _ := r.findMetas()
	r.measure(r.pageSize)
	r.walk(metas[0].root, metas[0].high)
	return r.used
}

// ReadPages is for tests outside of the package.
var ReadPages = readPages
