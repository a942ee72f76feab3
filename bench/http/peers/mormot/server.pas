// Blank or work on mORMot 2's asynchronous HTTP server: mormot-http PORT blank|work
program server;

{$I mormot.defines.inc}

uses
  {$I mormot.uses.inc}
  sysutils,
  mormot.core.base,
  mormot.core.os,
  mormot.core.rtti,
  mormot.core.text,
  mormot.core.datetime,
  mormot.core.json,
  mormot.net.http,
  mormot.net.server,
  mormot.net.async;

type
  TGroup = packed record
    balance: double;
    dates: TDateTimeMSDynArray;
  end;

  TAsked = packed record
    product, requestId: RawUtf8;
    group: TGroup;
  end;

  // As text: a TDateTimeMS is printed without milliseconds when there are none.
  TClient = packed record
    balance: double;
    minDate, maxDate: RawUtf8;
  end;

  TAnswer = packed record
    product, requestId: RawUtf8;
    client: TClient;
  end;

  TAnswers = class
    function Blank(Ctxt: THttpServerRequestAbstract): cardinal;
    function Work(Ctxt: THttpServerRequestAbstract): cardinal;
  end;

function TAnswers.Blank(Ctxt: THttpServerRequestAbstract): cardinal;
begin
  Ctxt.OutContent := 'OK';
  Ctxt.OutContentType := TEXT_CONTENT_TYPE;
  result := HTTP_SUCCESS;
end;

// As the suite's own mORMot server does it, on records.
function TAnswers.Work(Ctxt: THttpServerRequestAbstract): cardinal;
var
  asked: TAsked;
  answer: TAnswer;
  body: RawUtf8;
  at, least, greatest: TDateTimeMS;
begin
  if not RecordLoadJson(asked, RawUtf8(Ctxt.InContent), TypeInfo(TAsked)) or
     (asked.group.dates = nil) then
    exit(HTTP_BADREQUEST);
  answer.product := asked.product;
  answer.requestId := asked.requestId;
  answer.client.balance := asked.group.balance;
  least := asked.group.dates[0];
  greatest := least;
  for at in asked.group.dates do
  begin
    if at = 0 then
      exit(HTTP_BADREQUEST);
    if at < least then
      least := at;
    if at > greatest then
      greatest := at;
  end;
  answer.client.minDate := DateTimeMSToString(least, true, 'T', 'Z');
  answer.client.maxDate := DateTimeMSToString(greatest, true, 'T', 'Z');
  SaveJson(answer, TypeInfo(TAnswer), [], body);
  Ctxt.OutContent := body;
  Ctxt.OutContentType := JSON_CONTENT_TYPE;
  result := HTTP_SUCCESS;
end;

var
  http: THttpAsyncServer;
  answers: TAnswers;

begin
  Rtti.RegisterFromText([
    TypeInfo(TGroup), 'balance:double dates:TDateTimeMSDynArray',
    TypeInfo(TAsked), 'product:RawUtf8 requestId:RawUtf8 group:TGroup',
    TypeInfo(TClient), 'balance:double minDate,maxDate:RawUtf8',
    TypeInfo(TAnswer), 'product:RawUtf8 requestId:RawUtf8 client:TClient']);
  answers := TAnswers.Create;
  // One thread, as all servers of the comparison have one core.
  http := THttpAsyncServer.Create('127.0.0.1:' + RawUtf8(ParamStr(1)), nil, nil, '', 1, 75000,
    [hsoNoXPoweredHeader, hsoNoStats, hsoEnablePipelining]);
  http.HttpQueueLength := 100000;
  if ParamStr(2) = 'work' then
    http.OnRequest := answers.Work
  else
    http.OnRequest := answers.Blank;
  http.WaitStarted;
  // SIGTERM ends it.
  repeat
    Sleep(1000);
  until false;
end.
