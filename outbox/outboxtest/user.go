package outboxtest

import (
	"errors"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// unprivileged returns how to start the server's binaries, which refuse to run as root: for root
// as another user, whose id is returned too.
func unprivileged() (*syscall.SysProcAttr, *int, error) {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() != 0 {
		return attr, nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.Atoi(u.Uid)
		gid, gidErr := strconv.Atoi(u.Gid)
		if uidErr != nil || gidErr != nil {
			continue
		}
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return attr, &uid, nil
	}
	return nil, nil, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody to run it as")
}
