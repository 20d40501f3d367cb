package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// Owner is the owner of claims in berthd.
const Owner = "dra"

// Config has the parts and settings of a driver.
type Config struct {
	// Client calls berthd.
	Client *berth.Client
	// NodeName is the name of the node at the API server, and of the pool of its devices.
	NodeName string
	// CDIDirectory is where CDI files are written. The runtime reads it.
	CDIDirectory string
	// CPUModel is published if it is not empty.
	CPUModel string
	// NodeStatus reads the status of the node at the API server.
	NodeStatus func(context.Context) (corev1.NodeStatus, error)
	// Pod reads a pod at the API server, and Accepted returns a slice as the API server would store it.
	Pod      func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Accepted func(context.Context, *resourceapi.ResourceSlice) (*resourceapi.ResourceSlice, error)
	// Slices reads the slices of this node and this driver at the API server, and ReadClaim a claim.
	Slices    func(context.Context) ([]resourceapi.ResourceSlice, error)
	ReadClaim func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error)
	// Fail ends the program, because the kubelet can reach the driver no more.
	Fail func(error)
	Log  *slog.Logger
}

// Driver implements kubeletplugin.DRAPlugin.
type Driver struct {
	Config
	files *files

	// gate has room for the one call that admits or releases claims. A call leaves the queue when its context ends.
	gate chan struct{}
	// limit is the time for a call of berthd or the API server that is not part of a kubelet's call.
	limit time.Duration
	// changed is sent to when other devices are to be published, and measuredAgain when wanted is to be compared with what
	// is published. answered is sent to when berthd answers again.
	changed, measuredAgain, answered chan struct{}
	health                           health

	mu sync.Mutex // guards the fields below; held over no call. prepared and unrestored change with gate, too.
	// prepared are the claims with a CDI file, by uid.
	prepared map[string]*claim
	// unsure is set when berthd may have lost claims: it was restarted.
	unsure bool
	// unrestored are the prepared claims that berthd does not admit again, by uid, with the reason. No claim gets
	// anything of their NUMA nodes, because berthd may give it their CPUs.
	unrestored map[string]error
	// forgotten are the claims that the kubelet will not unprepare, by uid, with the time since when that is known.
	forgotten map[string]time.Time
	// differs are claims that berthd has with another allocation than the one that was to be prepared last, by uid.
	differs map[string]bool
	// onePool is set while claims get what pods may have, too.
	onePool bool
	// pools are what claims may have, by NUMA node; nil while berthd does not answer.
	pools map[uint32]pool
	announcement
}

// announcement is what the API server is to have of the devices, and what it has.
type announcement struct {
	// wanted is what is to be published; nil before berthd has answered. uncompared is set until the node is compared with it.
	wanted     *measured
	uncompared bool
	// published is set when the API server has had the devices, twice is the reason why nothing is published. refusal is the last
	// error of the API server, and unpublished is set while it does not have the devices as they are wanted.
	published   bool
	twice       string
	refusal     string
	unpublished bool
}

var _ kubeletplugin.DRAPlugin = (*Driver)(nil)

// New reads the CDI files of earlier drivers. It does not call berthd. The error is about the directory. A file that
// cannot be read is logged, and its claim is prepared again.
func New(c Config) (*Driver, error) {
	f, err := openFiles(c.CDIDirectory)
	if err != nil {
		return nil, err
	}
	d := &Driver{
		Config: c, files: f, unsure: true, limit: 10 * time.Second, differs: map[string]bool{},
		gate: make(chan struct{}, 1), changed: make(chan struct{}, 1), measuredAgain: make(chan struct{}, 1),
		answered: make(chan struct{}, 1),
	}
	var unread error
	if d.prepared, unread = f.list(); d.prepared == nil {
		return nil, errors.Join(fmt.Errorf("read --cdi-directory: %w", unread), d.Close())
	}
	d.assess()
	if unread != nil {
		c.Log.Warn("some CDI files of claims cannot be read", "error", unread)
	}
	return d, nil
}

// Close closes the directory.
func (d *Driver) Close() error { return d.files.dir.Close() }

// enter begins a call that admits or releases claims; the caller calls leave after it. They come one by one, and the other methods do
// not wait for them.
func (d *Driver) enter(ctx context.Context) error {
	select {
	case d.gate <- struct{}{}:
		return nil
	case <-ctx.Done():
		return errdefs.Unavailablef("another claim is being prepared or unprepared: %w", context.Cause(ctx))
	}
}

func (d *Driver) leave() { <-d.gate }

// await waits for a berthd that is being started again, as the kubelet repeats a call that failed after 10 seconds at the
// earliest. If berthd is not there in time, the call that follows has the reason.
func (d *Driver) await(ctx context.Context) {
	d.mu.Lock()
	unsure := d.unsure
	d.mu.Unlock()
	if !unsure {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	_ = d.Client.WaitReady(ctx)
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) PrepareResourceClaims(ctx context.Context,
	claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.await(ctx)
	out := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, c := range claims {
		result, began := kubeletplugin.PrepareResult{}, time.Now()
		prepared, err := d.prepare(ctx, c)
		if err != nil {
			// The author of a claim chooses a part of the text, which becomes an event, and is logged with each try.
			result.Err = fmt.Errorf("berth: claim %s/%s: %.*v", c.Namespace, c.Name, maxError, err)
			d.Log.Warn("prepare a claim failed", "claim", c.Namespace+"/"+c.Name, "uid", c.UID, "error", fmt.Sprintf("%.*v", maxError, err))
		} else {
			for _, p := range prepared.Parts {
				result.Devices = append(result.Devices, kubeletplugin.Device{
					Requests: []string{p.request}, PoolName: p.pool, DeviceName: p.device, ShareID: p.share,
					CDIDeviceIDs: []string{Kind + "=" + prepared.cdiName(p)},
				})
			}
			d.Log.Info("a claim is prepared", "claim", c.Namespace+"/"+c.Name, "uid", c.UID, "cpus", prepared.cpus().String(), "took",
				time.Since(began))
		}
		out[c.UID] = result
	}
	return out, nil
}

// prepare admits a claim and writes its CDI file.
func (d *Driver) prepare(ctx context.Context, c *resourceapi.ResourceClaim) (*claim, error) {
	wanted, err := d.readAllowed(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := d.enter(ctx); err != nil {
		return nil, err
	}
	defer d.leave()
	return d.prepareWanted(ctx, wanted)
}

// readAllowed reads the allocation of a claim that may be prepared.
func (d *Driver) readAllowed(ctx context.Context, c *resourceapi.ResourceClaim) (*claim, error) {
	wanted, err := read(c, d.NodeName)
	if err != nil {
		return nil, err
	}
	return wanted, d.allowed(ctx, c, wanted)
}

// prepareWanted is prepare for a caller that has entered.
func (d *Driver) prepareWanted(ctx context.Context, wanted *claim) (*claim, error) {
	have := d.prepared[wanted.UID]
	if have != nil && wanted.same(have) {
		wanted.has(have) // one that is allocated again has nothing of its own yet
	}
	for again := false; ; again = true {
		if err := d.restore(ctx); err != nil {
			return nil, err
		}
		if err := d.obstacle(wanted); err != nil {
			return nil, err
		}
		given, err := d.admit(ctx, wanted)
		if err != nil {
			return nil, err
		}
		other := d.holder(given)
		if other == nil {
			wanted = given
			break
		}
		// berthd has lost the other claim since restore.
		err = errdefs.Internalf("berthd gives CPUs %s, some of which claim %s/%s has: %s", given.cpus(), other.Namespace, other.Name,
			other.cpus())
		if again || d.release(ctx, wanted.UID) != nil {
			return nil, err
		}
		d.mu.Lock()
		d.unsure = true
		d.mu.Unlock()
	}
	if err := d.files.write(wanted); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.forgotten, wanted.UID)
	delete(d.differs, wanted.UID)
	d.prepared[wanted.UID] = wanted
	if have == nil {
		d.grow(wanted)
	}
	d.assess()
	return wanted, nil
}

// allowed returns why a claim that is not prepared yet cannot be, whatever is free.
func (d *Driver) allowed(ctx context.Context, c *resourceapi.ResourceClaim, wanted *claim) error {
	d.mu.Lock()
	onePool, answered, prepared := d.onePool, d.pools != nil, d.prepared[wanted.UID] != nil
	d.mu.Unlock()
	if prepared {
		return nil
	}
	if !answered { // berthd was started again, and its configuration may have changed
		allocatable, err := d.Client.Node().GetAllocatable(ctx, &nodev1.GetAllocatableRequest{})
		if err != nil {
			return err
		}
		onePool = allocatable.GetResourceClaimsFromAllocatable()
	}
	switch {
	case onePool:
		return d.counted(ctx, c, wanted)
	case wanted.hugePages():
		return errdefs.Unsupportedf("the claim has huge pages, which need dra.from: allocatable in berthd's configuration")
	}
	return nil
}

// holder returns another prepared claim that has one of the CPUs of a claim; nil if there is none. The caller
// has entered.
func (d *Driver) holder(of *claim) *claim {
	cpus := of.cpus()
	for uid, c := range d.prepared {
		if uid != of.UID && c.cpus().Overlaps(cpus) {
			return c
		}
	}
	return nil
}

// obstacle returns why a claim cannot have its NUMA nodes: a prepared claim has a part of one, and berthd does not
// have it. The caller has entered.
func (d *Driver) obstacle(of *claim) error {
	for _, uid := range slices.Sorted(maps.Keys(d.unrestored)) {
		if c := d.prepared[uid]; uid != of.UID && slices.ContainsFunc(c.Parts, func(p *part) bool { return of.uses(p.Node) }) {
			return errdefs.Unavailablef("claim %s/%s has CPUs %s, but is not in berthd's ledger, so nothing of its NUMA nodes is given to other claims: end the pods that use it, or remove the reason: %w",
				c.Namespace, c.Name, c.cpus(), d.unrestored[uid])
		}
	}
	return nil
}

// restore admits the prepared claims that berthd may have lost. A claim that berthd refuses is unrestored, and tried again by
// the next call. An error means that berthd does not answer. The caller has entered.
func (d *Driver) restore(ctx context.Context) error {
	d.mu.Lock()
	unsure := d.unsure
	d.unsure = false // a stream may set it again, meanwhile
	d.mu.Unlock()
	if !unsure && len(d.unrestored) == 0 {
		return nil
	}
	unrestored := map[string]error{}
	for _, uid := range slices.Sorted(maps.Keys(d.prepared)) {
		before := d.unrestored[uid]
		if !unsure && before == nil {
			continue
		}
		c := d.prepared[uid]
		err := d.readmit(ctx, c)
		if temporary(err) {
			d.mu.Lock()
			d.unsure = d.unsure || unsure
			d.mu.Unlock()
			return errdefs.Unavailablef("prepared claim %s/%s is not in berthd's ledger yet: %w", c.Namespace, c.Name, err)
		}
		if err == nil {
			continue
		}
		unrestored[uid] = err
		if before == nil || before.Error() != err.Error() {
			d.Log.Error("a prepared claim is not in berthd's ledger and cannot be admitted again; other claims get nothing of its NUMA nodes until its pods have ended, or the reason is removed",
				"claim", c.Namespace+"/"+c.Name, "uid", uid, "cpus", c.cpus().String(), "error", err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.obstruct(unrestored)
	return nil
}

// obstruct replaces the claims that are unrestored. The caller has entered, and holds mu.
func (d *Driver) obstruct(unrestored map[string]error) {
	before := d.unrestored
	d.unrestored = unrestored
	d.assess()
	if !maps.EqualFunc(before, unrestored, func(error, error) bool { return true }) {
		wake(d.changed)
	}
}

// readmit admits a prepared claim with the CPUs that it has.
func (d *Driver) readmit(ctx context.Context, c *claim) error {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	known, err := d.admit(ctx, c)
	if err != nil {
		return err
	}
	for i, p := range c.Parts {
		if says := known.Parts[i].CPUs; p.CPUs != says {
			return errdefs.Internalf("request %s has CPUs %s, berthd says %s", p.Name, p.CPUs, says)
		}
	}
	return nil
}

// temporary reports whether an error of admit is no decision about the claim.
func temporary(err error) bool {
	if errors.As(err, new(*berth.Error)) {
		return !berth.IsDecided(err)
	}
	return errdefs.ClassOf(err) == errdefs.Unavailable
}

// Unrestored is the number of prepared claims that berthd does not admit again.
func (d *Driver) Unrestored() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.unrestored)
}

// admit admits a claim, and returns it with its CPUs. A rejection is an error with the explanation.
func (d *Driver) admit(ctx context.Context, c *claim) (*claim, error) {
	answer, err := d.Client.Admission().Admit(ctx, c.admission(Owner))
	if failed := new(berth.Error); errors.As(err, &failed) && failed.Reason == string(errdefs.PodSpecDiffers) {
		d.mu.Lock()
		d.differs[c.UID] = true
		d.mu.Unlock()
		return nil, fmt.Errorf("the claim was prepared with another allocation, which is released when no container has used it for %v: %w", grace, err)
	}
	if err != nil {
		return nil, err
	}
	switch answer.GetVerdict() {
	case admissionv1.Verdict_VERDICT_ADMITTED:
	case admissionv1.Verdict_VERDICT_DEFERRED:
		return nil, errdefs.Unavailablef("deferred: %s", answer.GetMessage())
	default:
		return nil, errdefs.Refuse(errdefs.Reason(answer.GetReason()), "%s", explanation(answer))
	}
	given, all := *c, cpuset.Set{}
	given.Parts = make([]*part, len(c.Parts))
	for i, p := range c.Parts {
		is := func(a *typesv1.ContainerAllocation) bool {
			return a.GetContainerName() == p.Name && a.GetExclusiveCpus()
		}
		at := slices.IndexFunc(answer.GetAllocations(), is)
		if at < 0 {
			return nil, errdefs.Internalf("berthd's answer has no CPUs for request %s", p.Name)
		}
		set, err := cpuset.Parse(answer.GetAllocations()[at].GetCpus().GetList())
		if err != nil {
			return nil, errdefs.Internalf("berthd's answer for request %s: %w", p.Name, err)
		}
		if want, _ := p.amount(capacityCPU); uint64(set.Len()) != want || set.Overlaps(all) {
			return nil, errdefs.Internalf("berthd's answer for request %s has CPUs %s, expected %d that no other request has", p.Name,
				set, want)
		}
		all = all.Union(set)
		next := *p
		next.CPUs, given.Parts[i] = set.String(), &next
	}
	return &given, nil
}

// maxExplanation bounds the text of a refusal in bytes, and maxError that of an error in characters; an event has at most 1024.
const (
	maxExplanation = 700
	maxError       = 900
)

// explanation is the text for a rejected claim: the missing amounts of its NUMA node, and a change that
// would help.
func explanation(answer *admissionv1.AdmitResponse) string {
	texts := slices.Clone(answer.GetTrace().GetMissing())
	if len(texts) == 0 {
		texts = append(texts, answer.GetMessage())
	}
	for _, s := range answer.GetTrace().GetSuggestions() {
		texts = append(texts, "it would fit "+s.GetText())
	}
	text := answer.GetReason() + ": " + strings.Join(texts, "; ")
	if len(text) > maxExplanation {
		text = strings.ToValidUTF8(text[:maxExplanation], "") + " …"
	}
	return text
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.await(ctx)
	out := make(map[types.UID]error, len(claims))
	for _, c := range claims {
		if err := d.unprepare(ctx, string(c.UID)); err != nil {
			out[c.UID] = fmt.Errorf("berth: claim %s/%s: %w", c.Namespace, c.Name, err)
			d.Log.Warn("unprepare a claim failed", "claim", c.Namespace+"/"+c.Name, "uid", c.UID, "error", err)
			continue
		}
		out[c.UID] = nil
		d.Log.Info("a claim is unprepared", "claim", c.Namespace+"/"+c.Name, "uid", c.UID)
	}
	return out, nil
}

// unprepare removes the CDI file of a claim, and then the claim.
func (d *Driver) unprepare(ctx context.Context, uid string) error {
	if err := d.enter(ctx); err != nil {
		return err
	}
	defer d.leave()
	return d.remove(ctx, uid)
}

// remove is unprepare for a caller that has entered.
func (d *Driver) remove(ctx context.Context, uid string) error {
	if err := d.files.remove(uid); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.prepared, uid)
	delete(d.forgotten, uid)
	delete(d.differs, uid)
	if d.unrestored[uid] != nil {
		left := maps.Clone(d.unrestored)
		delete(left, uid)
		d.obstruct(left)
	}
	d.assess()
	d.mu.Unlock()
	return d.release(ctx, uid)
}

// release removes a claim from berthd; it is no error if the claim is not in the ledger.
func (d *Driver) release(ctx context.Context, uid string) error {
	_, err := d.Client.Admission().RemovePod(ctx, &admissionv1.RemovePodRequest{PodUid: uid, Owner: Owner})
	return err
}

// HandleError implements kubeletplugin.DRAPlugin. The helper repeats what is recoverable, such as a publication that the API server
// refuses. Otherwise one of its servers has ended, and the kubelet can reach the driver no more.
func (d *Driver) HandleError(_ context.Context, err error, msg string) {
	d.Log.Error(msg, "error", err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		d.Fail(fmt.Errorf("%s: %w", msg, err))
		return
	}
	d.mu.Lock()
	d.refusal = fmt.Sprintf("%s: %.500s", msg, err)
	d.mu.Unlock()
	wake(d.measuredAgain)
}
