package store

// Current returns, page by page, whether a sound file's newest state is in it: the
// pages that the tree leads to, with those that belong to them.
func Current(data []byte) []bool {
	r := &rawReader{inspection: inspection{data: data}}
	metas, _ := r.findMetas()
	r.slots = uint64(len(data)) / r.pageSize
	r.walk(metas[0].root, metas[0].high)
	current := make([]bool, r.slots)
	for slot := range r.reached {
		_, _, _, overflow, _ := r.header(slot)
		for i := slot; i <= slot+overflow; i++ {
			current[i] = true
		}
	}
	return current
}

// ReadPages is for tests outside of the package.
var ReadPages = readPages
