"""Every door to the outside: files, buckets, addresses, TLS, NATS, QUIC, listeners, metrics text, notices to systemd.

Other rooms take a door as an argument, so that tests can put a failing disk or a lying peer behind it. A path or an
object from a stranger is refused here, before it has an effect: symbolic links, names that leave a root, devices.

It imports only `veen.core`. Start with `local`, the door between storage and a disk (`Fs`, `File`); `places` opens a
directory here or in a bucket, `objects` and `stores` write to buckets, `tls` makes contexts, `nats_link` and
`quic_link` are shared by hub and client.
"""
