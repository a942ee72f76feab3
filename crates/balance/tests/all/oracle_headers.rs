//! Comparison of this balancer with nginx and HAProxy: with the same rules, backends get the same
//! path and headers, and clients the same headers.
//!
//! A header with an empty value counts as missing: of the three, only HAProxy sends it.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use throng_balance::{Balancer, Config};
use throng_testkit::{Random, TempFolder};

use crate::oracle::{Proxy, Way, program};

const REQUESTS: usize = 300;

/// The names of headers that are compared at the backend.
const AT_BACKEND: [&str; 7] = ["x-set", "x-gone", "x-query", "x-cookie", "x-copy", "x-uri", "host"];
/// The names of headers that are compared at the client.
const AT_CLIENT: [&str; 3] = ["x-frame-options", "x-powered-by", "x-more"];

/// Begins a backend that answers with the head of each request. It ends with the process.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(&stream);
                let (mut head, mut line) = (String::new(), String::new());
                while reader.read_line(&mut line).is_ok_and(|len| len > 0) {
                    head.push_str(&line);
                    if line == "\r\n" {
                        let answer = format!(
                            "HTTP/1.1 200 OK\r\nX-Frame-Options: SAMEORIGIN\r\nX-Powered-By: x\r\n\
                             X-More: own\r\nContent-Length: {}\r\n\r\n{head}",
                            head.len()
                        );
                        let _ = (&stream).write_all(answer.as_bytes());
                        head.clear();
                    }
                    line.clear();
                }
            });
        }
    });
    address
}

fn ours(backend: SocketAddr) -> String {
    format!(
        "listen = \"127.0.0.1:0\"\nshards = 1\nbackends = [\"{backend}\"]\n[[site]]\n\
         hosts = [\"*\"]\nrequest_headers = {{ set = {{ X-Set = \"fixed\", \
         X-Query = \"${{query.q}}\", X-Cookie = \
         \"${{cookie.c}}\", X-Copy = \"<${{header.X-Own}}>\", X-Uri = \"${{method}} ${{uri}}\" }}, \
         remove = [\"X-Gone\"] }}\n\
         response_headers = {{ set = {{ X-Frame-Options = \"DENY\" }}, \
         add = {{ X-More = \"added\" }}, \
         remove = [\"X-Powered-By\"] }}\n\
         routes = [{{ prefix = \"/api\", strip_prefix = \"/api\" }}, \
         {{ path = \"/v1/{{*rest}}\", rewrite = \"/v2/${{param.rest}}\" }}, \
         {{ path = \"/fixed\", rewrite = \"/other?a=b\", host = \"app.internal\" }}]\n"
    )
}

fn of_nginx(backend: SocketAddr, folder: &str) -> String {
    let common = format!(
        "proxy_pass http://{backend}; proxy_http_version 1.1; proxy_set_header Connection \"\"; \
         proxy_set_header X-Set fixed; proxy_set_header X-Gone \"\"; \
         proxy_set_header X-Query $arg_q; \
         proxy_set_header X-Cookie $cookie_c; proxy_set_header X-Copy \"<$http_x_own>\"; \
         proxy_set_header X-Uri \"$request_method $request_uri\"; \
         proxy_hide_header X-Frame-Options; proxy_hide_header X-Powered-By; \
         add_header X-Frame-Options DENY; add_header X-More added;"
    );
    let host = "proxy_set_header Host $http_host;";
    format!(
        "daemon off; worker_processes 1; pid {folder}/pid; error_log stderr crit;\nevents {{}}\n\
         http {{\naccess_log off; keepalive_requests 1000000;\n\
         client_body_temp_path {folder}/1; proxy_temp_path {folder}/2;\n\
         fastcgi_temp_path {folder}/3; uwsgi_temp_path {folder}/4; scgi_temp_path {folder}/5;\n\
         server {{ listen unix:{folder}/nginx;\n\
         location = /api {{ rewrite ^ / break; {host} {common} }}\n\
         location /api/ {{ rewrite ^/api(/.*)$ $1 break; {host} {common} }}\n\
         location /v1/ {{ rewrite ^/v1/(.*)$ /v2/$1 break; {host} {common} }}\n\
         location = /fixed {{ rewrite ^ /other?a=b? break; proxy_set_header Host app.internal; \
         {common} }}\n\
         location / {{ {host} {common} }}\n}} }}\n"
    )
}

fn of_haproxy(backend: SocketAddr, folder: &str) -> String {
    format!(
        "defaults\nmode http\ntimeout client 60s\ntimeout server 60s\ntimeout connect 60s\n\
         timeout http-keep-alive 60s\nfrontend f\nbind unix@{folder}/haproxy\n\
         http-request set-header X-Set fixed\nhttp-request del-header X-Gone\n\
         http-request set-header X-Query %[url_param(q)]\n\
         http-request set-header X-Cookie %[req.cook(c)]\n\
         http-request set-header X-Copy <%[req.hdr(x-own)]>\n\
         http-request set-header X-Uri \"%[method] %[pathq]\"\n\
         http-request set-header Host app.internal if {{ path /fixed }}\n\
         http-request set-uri /other?a=b if {{ path /fixed }}\n\
         http-request replace-path ^/api/?(.*)$ /\\1 if {{ path /api }} || {{ path_beg /api/ }}\n\
         http-request replace-path ^/v1/(.*)$ /v2/\\1\n\
         http-response set-header X-Frame-Options DENY\nhttp-response add-header X-More added\n\
         http-response del-header X-Powered-By\ndefault_backend b\nbackend b\nserver s {backend}\n"
    )
}

fn request(random: &mut Random) -> String {
    let paths = ["/api", "/api/", "/api/x/y", "/v1/", "/v1/a/b", "/v2/a", "/fixed", "/other", "/"];
    let queries = ["", "?q=1", "?x=y&q=2", "?q=", "?"];
    let path = paths[random.below(paths.len())];
    let query = queries[random.below(queries.len())];
    let mut head = format!("GET {path}{query} HTTP/1.1\r\nHost: a.test");
    for line in
        ["X-Set: own", "X-Gone: own", "X-Query: own", "Cookie: b=1; c=2", "X-Own: o", "X-Uri: o"]
    {
        if random.below(2) == 0 {
            head.push_str(&format!("\r\n{line}"));
        }
    }
    head
}

/// Returns what is compared: the request line, and the values of headers at the backend and at the
/// client.
fn seen((answer, request): (String, String)) -> Vec<String> {
    let values = |head: &str, name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        let of_name = lines.filter(|(other, _)| other.eq_ignore_ascii_case(name));
        let values: Vec<_> = of_name.map(|(_, value)| value.trim().to_owned()).collect();
        format!("{name}: {}", values.join(" | "))
    };
    let line = request.lines().next().unwrap_or_default().to_owned();
    let at_backend = AT_BACKEND.map(|name| values(&request, name));
    let at_client = AT_CLIENT.map(|name| values(&answer, name));
    std::iter::once(line).chain(at_backend).chain(at_client).collect()
}

#[test]
fn nginx_and_haproxy_change_requests_and_answers_alike() {
    let (Some(nginx), Some(haproxy)) = (program("nginx"), program("haproxy")) else { return };
    let (folder, backend) = (TempFolder::new("oracle-headers"), echo());
    let path = folder.display().to_string();
    let (mut nginx, mut haproxy) = (Command::new(nginx), Command::new(haproxy));
    let file = folder.write("nginx.conf", of_nginx(backend, &path));
    nginx.arg("-p").arg(&*folder).arg("-c").arg(file).args(["-e", "stderr"]);
    let file = folder.write("haproxy.cfg", of_haproxy(backend, &path));
    haproxy.args(["-db", "-q", "-f"]).arg(file);
    let _proxies = [Proxy::start(&mut nginx), Proxy::start(&mut haproxy)];
    let balancer = Balancer::start(Config::parse(&ours(backend), "b.toml").unwrap()).unwrap();
    let mut own = Way::tcp(balancer.addresses()[0]);
    let mut others = ["nginx", "haproxy"].map(|name| (name, Way::unix(folder.join(name))));
    let random = &mut Random::new(17);
    for _ in 0..REQUESTS {
        let head = request(random);
        let ours = seen(own.answer(&head));
        for (name, way) in &mut others {
            let theirs = seen(way.answer(&head));
            let is_allowed = |(one, other): (&String, &String)| {
                // nginx drops an empty query where it rewrites the path, and its variables have the
                // parameters of the query that is written.
                let is_of_nginx = head.contains("? HTTP")
                    && one.replace("? ", " ") == other.replace("? ", " ")
                    || head.contains("/fixed") && one.starts_with("x-query: ");
                one == other || *name == "nginx" && is_of_nginx
            };
            assert!(
                ours.len() == theirs.len() && ours.iter().zip(&theirs).all(is_allowed),
                "{name}: {theirs:#?}, {ours:#?}: {head}"
            );
        }
    }
    let _ = balancer.shut_down(Duration::ZERO, Duration::ZERO);
}
