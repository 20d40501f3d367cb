package cgroupfs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
)

// longQuotaWait ends the waits between attempts at a quota, which double: about
// a second in all.
const longQuotaWait = 512 * time.Millisecond

// setV1 writes values on v1. A valid quota can fail there with "invalid argument", for two
// reasons:
//
//   - Quota and period are two files. The limits of the parent and the children may
//     allow neither to change first. The quota is removed meanwhile.
//   - A removed child counts until the kernel has freed it, some 20 ms later (an RCU
//     grace period), or 300 ms with ten busy processes for each CPU. The write is repeated.
func (d *Driver) setV1(ctx context.Context, name cgroup.Name, quota int64, set func() error) error {
	for wait := time.Millisecond; ; wait *= 2 {
		err := set()
		if quota > 0 && errors.Is(err, unix.EINVAL) {
			err = d.liftQuota(name, set)
		}
		if quota <= 0 || !errors.Is(err, unix.EINVAL) || wait > longQuotaWait {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// liftQuota sets a cgroup while it has no quota, which is as good as its
// parent's. If the setting fails, the old quota is put back.
func (d *Driver) liftQuota(name cgroup.Name, set func() error) error {
	const quota, period = "cpu.cfs_quota_us", "cpu.cfs_period_us"
	h, _ := d.hierarchy("cpu")
	old := make(map[string]string)
	for _, file := range []string{quota, period} {
		text, err := d.read(h, name, file)
		if err != nil {
			return err
		}
		old[file] = text
	}
	if err := d.write(h, name, quota, "-1"); err != nil {
		return err
	}
	err := set()
	if err == nil {
		return nil
	}
	for _, file := range []string{period, quota} {
		if back := d.write(h, name, file, old[file]); back != nil {
			return fmt.Errorf("%w (and %s could not be put back: %w)", err, file, back)
		}
	}
	return err
}
